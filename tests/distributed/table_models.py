"""Models with constants that are large enough to be kept in parts (16 MiB in float64)."""

from __future__ import annotations

import torch
from torch import nn

ROWS, WIDTH = 2**15, 64


class Tables(nn.Module):
    """Multiplies by a table that is saved, and adds waves that capture computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, WIDTH)
        self.register_buffer("table", torch.rand(ROWS, WIDTH) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, rows up to ROWS, 4) -> the loss."""
        rows = x.shape[1]
        position = torch.arange(rows, dtype=torch.float64)
        waves = torch.outer(position, 1 + torch.arange(WIDTH, dtype=torch.float64)).sin()
        hidden: torch.Tensor = self.layer(x) * self.table[:rows] + waves
        return hidden.tanh().square().mean()


class MovingTable(Tables):
    """One that training changes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, ROWS, 4) -> the loss."""
        hidden: torch.Tensor = self.layer(x) * self.table
        if self.training:
            with torch.no_grad():
                self.table.mul_(0.9).add_(hidden[0], alpha=0.1)
        return hidden.square().mean()


def rows_of(count: int, batch: int = 1) -> torch.Tensor:
    """Inputs of them."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, count, 4, generator=generator, dtype=torch.float64)
