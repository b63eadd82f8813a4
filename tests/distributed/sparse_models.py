"""Models that make sparse matrices of dense tensors while they run."""

from __future__ import annotations

import torch
from torch import nn

from tests.distributed.kinds import Kind


class Neighbours(nn.Module):
    """Adds the features of the points next to each, of edges with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        edges = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])
        self.register_buffer("edges", edges)
        self.weights = nn.Parameter(torch.rand(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4, 6] to a number."""
        adjacent = torch.sparse_coo_tensor(self.edges, self.weights, (4, 4))
        return self.last(torch.sparse.mm(adjacent, self.first(x)).relu()).square().mean()


def neighbours() -> Kind:
    random = torch.Generator().manual_seed(3)
    return Kind(Neighbours, [(torch.randn(4, 6, generator=random),) for _ in range(2)])
