"""Running statistics that a training call moves between a forward in evaluation and its backward.

One process computes the gradients of that forward with its activations, and with the statistics as
they are in backward. PyTorch says nothing, since the statistics move without a new version.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.distributed.harness import run_ranks
from tests.distributed.kinds import Kind

HERE = "tests.distributed.frontend.test_moved_buffers"
ROWS = 8


class Layers(nn.Module):
    """Two norms between linear layers, one of them without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.second, self.plain = nn.Linear(16, 16), nn.BatchNorm1d(16, affine=False)
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        return self.last(torch.sigmoid(self.plain(self.second(h)))).square().mean()


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.norm(self.conv(x.view(-1, 3, 1, 2).expand(-1, -1, 4, 2))))
        return self.last(torch.sigmoid(h).mean((2, 3))).square().mean()


class ByHand(nn.Module):
    """Evaluation by operators of its own, on views of the statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        if self.training:
            h = self.norm(h)
        else:
            mean, var = self.norm.running_mean, self.norm.running_var
            assert mean is not None and var is not None
            h = torch.tanh((h - mean.view(1, -1)) * (var + 1e-3).rsqrt()) * mean.view(1, -1).cos()
        return self.last(torch.sigmoid(h)).square().mean()


class Beside(nn.Module):
    """Reads the statistics before and after they move, in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.norm.running_mean is not None
        h = torch.tanh(self.first(x))
        before = torch.tanh(h - self.norm.running_mean)
        h = torch.tanh(self.norm(h) + self.norm.running_mean)
        return self.last(h + before).square().mean()


class Functional(nn.Module):
    """Statistics under names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 5)
        self.register_buffer("mu", torch.zeros(16))
        self.register_buffer("sigma", torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.batch_norm(self.first(x), self.mu, self.sigma, training=self.training, momentum=0.3)
        return self.last(torch.tanh(h)).square().mean()


def _batches() -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    made = torch.randn(3, ROWS, 6, generator=generator, dtype=torch.float64)
    return [(x,) for x in made]


def _eval_first(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.eval()
    loss: torch.Tensor = module(x)
    module.train()
    return loss + module(x * 1.5 + 0.5)


def _eval_last(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(x * 1.5 + 0.5)
    module.eval()
    loss = loss + module(x)
    module.train()
    return loss


def _one_frozen(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    norm = module.get_submodule("norm")
    norm.eval()
    loss: torch.Tensor = module(x)
    norm.train()
    return loss + module(x * 1.5 + 0.5)


def _two_forwards(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(x)
    return loss + module(x * 1.5 + 0.5)


def _gradient_of_inputs(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Adversarial rows, whose gradients are asked for after a training call."""
    module.eval()
    given = x.clone().requires_grad_()
    loss = module(given)
    module.train()
    other: torch.Tensor = module(x * 1.5)
    (gradient,) = torch.autograd.grad(loss, given)
    return other + module((x + 0.1 * gradient / gradient.abs().max()).detach())


MADE: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.Tensor]]] = {
    "eval_first": (Layers, _eval_first),
    "eval_last": (Layers, _eval_last),
    "planned_in_eval": (lambda: Layers().eval(), _eval_first),
    "one_frozen": (Layers, _one_frozen),
    "images": (Images, _eval_first),
    "by_hand": (ByHand, _eval_first),
    "beside": (Beside, _two_forwards),
    "functional": (Functional, _eval_first),
    "gradient_of_inputs": (Layers, _gradient_of_inputs),
}


def _kind(name: str, recompute: bool) -> Kind:
    make, step = MADE[name]
    return Kind(make, _batches(), step=step, recompute=recompute)


def __getattr__(name: str) -> Callable[[], Kind]:
    """``images``, ``images_again``: the kinds, without running again and with it."""
    if name.removesuffix("_again") not in MADE:
        raise AttributeError(name)
    return lambda: _kind(name.removesuffix("_again"), name.endswith("_again"))


@pytest.mark.parametrize("again", ["", "_again"])
@pytest.mark.parametrize("name", MADE)
def test_statistics_are_those_of_one_process(name: str, again: str) -> None:
    found = run_ranks(2, "tests.distributed.kinds:check", f"{HERE}:{name}{again}")
    assert found == [[]] * 2


@pytest.mark.parametrize("again", ["", "_again"])
def test_statistics_are_those_of_one_process_on_four(again: str) -> None:
    found = run_ranks(4, "tests.distributed.kinds:check", f"{HERE}:eval_first{again}")
    assert found == [[]] * 4
