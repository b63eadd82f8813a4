"""What ATen kernels allocate inside, where it matters."""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from tensoropt_torch.simulate.ledger import Ledger


class Workspaces:
    def __init__(self, device: str, measure: bool) -> None:
        pass

    def note(self, ledger: Ledger, func: OpOverload, args: Any, kwargs: Any) -> None:
        pass

    def resolve(self, ledger: Ledger) -> list[str]:
        return []
