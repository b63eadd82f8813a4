"""Tables whose rows are renormalised before each step, as ``max_norm`` does in forward."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.distributed.kinds import Kind

MAX_NORM = 0.5


class Table(nn.Module):
    """Looks up and classifies."""

    def __init__(self, max_norm: float | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8, max_norm=max_norm)
        self.head = nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Ids [b, s] and classes [b] to a number."""
        return F.cross_entropy(self.head(self.table(ids).mean(1)), y)


def renormalise(module: nn.Module, number: int = 0) -> None:
    """What the refusal of ``max_norm`` says."""
    weight = module.get_parameter("table.weight")
    with torch.no_grad():
        weight.mul_((MAX_NORM / (weight.norm(dim=1, keepdim=True) + 1e-7)).clamp(max=1))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(4)
    return [
        (torch.randint(12, (4, 3), generator=random), torch.randint(5, (4,), generator=random))
        for _ in range(3)
    ]


def renormalised() -> Kind:
    return Kind(Table, batches(), between=renormalise)
