"""``torch.no_grad`` inside ``torch.autocast``, which export forgets.

Export makes regions of both, but of the first inside the second it keeps the calls
alone, so that gradients would flow where the module lets none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


class DetachWithoutGrad(TorchFunctionMode):
    """Detaches what functions return while gradients are off under autocast."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """As the function, with results that need no gradient."""
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled() or not _is_autocast():
            return result
        return pytree.tree_map_only(
            torch.Tensor, lambda value: value if _is_among(value, args) else value.detach(), result
        )


def _is_autocast() -> bool:
    return any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))


def _is_among(value: torch.Tensor, args: Sequence[Any]) -> bool:
    """What was changed in place is returned as it is."""
    return any(value is leaf for leaf in pytree.tree_leaves(args))
