"""Building blocks under the fastest and the smallest strategy on two processes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tensoropt_torch
from tests.distributed.harness import run_ranks
from tests.distributed.parity import differences, train, train_alone

HERE = "tests.distributed.module.test_small_models"
TOLERANCE = 1e-5


class Attention(nn.Module):
    """A residual block of causal attention with four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(3))
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, s, 16) to the same shape."""
        normed = self.norm(x)
        query, key, value = (f(normed).unflatten(-1, (4, 4)).transpose(1, 2) for f in self.qkv)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Fourier(nn.Module):
    """Scales the frequencies of a sequence, by complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.randn(5, 16, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 8, 16) to the same shape."""
        frequencies = torch.fft.rfft(self.inner(x), dim=1)
        return torch.fft.irfft(frequencies * self.scale, n=8, dim=1)


class PartlyTurned(nn.Module):
    """Turns the first dims of each row and leaves the rest, of which there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, s, 16) to the same shape."""
        heads = self.linear(x).view(*x.shape[:2], 4, 4).transpose(1, 2)
        turned, rest = heads[..., :4], heads[..., 4:]
        turned = torch.cat((-turned[..., 2:], turned[..., :2]), -1) + turned
        rest = 2 * rest.reshape(x.shape[0], 4 * x.shape[1], 0).view(*heads.shape[:3], 0)
        return torch.cat((turned, rest), -1).transpose(1, 2).flatten(2)


def block(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "fourier":
        return Fourier()
    if name == "partly turned":
        return PartlyTurned()
    if name == "attention":
        return Attention()
    if name == "mlp":
        return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    return nn.Linear(16, 16, bias=name == "linear with bias")


def check(name: str) -> list[str]:
    model, loss_fn = block(name), nn.functional.mse_loss
    x, y = torch.randn(2, 4, 8, 16, generator=torch.Generator().manual_seed(1))
    expected = train_alone(model, lambda module: loss_fn(module(x), y), TOLERANCE)
    given = {"loss_fn": loss_fn, "targets": (y,)}
    smallest = tensoropt_torch.find_frontier(model, (x,), **given).smallest.plan
    fastest = tensoropt_torch.find_strategy(model, (x,), measure=False, **given)
    wrong: list[str] = []
    for plan in (fastest, smallest):
        module = tensoropt_torch.parallelize(model, plan)
        got = train(module, lambda module=module: module(x, y))
        wrong += differences(got, expected, TOLERANCE)
    return wrong


@pytest.mark.parametrize(
    "name", ["linear", "linear with bias", "mlp", "attention", "fourier", "partly turned"]
)
def test_the_fastest_and_the_smallest_equal_one_process(name: str) -> None:
    for wrong in run_ranks(2, f"{HERE}:check", name, 120):
        assert not wrong
