"""A model in bfloat16 for the tests of the `tensoropt` command."""

import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.up = nn.Linear(width, width, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(width, 1, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x)).mean()


def build() -> tuple[nn.Module, tuple[Tensor]]:
    return Perceptron(), (torch.randn(2, 64, dtype=torch.bfloat16),)
