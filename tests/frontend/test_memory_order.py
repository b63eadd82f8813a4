"""Random numbers are drawn in the order of memory, which ``contiguous`` changes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.coverage.bits import differing_bits
from benchmarks.coverage.zoo import Example


class Transposed(nn.Module):
    """Dropout of what was transposed and copied."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(self.linear(x).transpose(1, 2).contiguous() * 2, 0.5)
        return (y * torch.arange(6.0)[None, :, None]).square().sum()


def test_dropout_of_a_copy_draws_in_its_order() -> None:
    torch.manual_seed(0)
    assert differing_bits(Example(Transposed(), (torch.randn(3, 5, 4),))) == []
