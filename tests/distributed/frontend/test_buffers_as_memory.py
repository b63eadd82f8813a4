"""Memory that autograd keeps: buffers that a forward pass reads and writes, calls with ``out=``,
and what a loop writes to between forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from tensoropt_torch import parallelize
from tests.distributed.harness import run_ranks
from tests.distributed.kinds import Kind, strategies
from tests.distributed.parity import whole

HERE = "tests.distributed.frontend.test_buffers_as_memory"


# --- Modules ----------------------------------------------------------------------------------


class Layers(nn.Module):
    """Two layers with a buffer of units between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 4)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 12))


class Running(Layers):
    """Divides by a scale that gets a new tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x) / self.scale
        self.scale = 0.9 * self.scale + 0.1 * h.detach().abs().mean(0)
        return self.down(torch.tanh(h)).square().mean()


class InPlace(Layers):
    """The same with a call in place, on a view, after a copy was read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x) * self.scale.clone()
        with torch.no_grad():
            self.scale[2:].mul_(0.9).add_(h.abs().mean(0)[2:], alpha=0.1)
        return self.down(torch.tanh(h)).square().mean()


class Returned(Layers):
    """The old tensor is an output and part of the loss."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = self.scale
        h = self.up(x) * old
        self.scale = h.detach().mean(0)
        return self.down(h).square().mean() + (old * self.up.bias).sum(), old


class Changing(Layers):
    """Two buffers change places, a third one is turned around."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("before", torch.linspace(1.0, 2.0, 12))
        self.register_buffer("square", torch.arange(16.0).view(4, 4) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x) * self.scale + self.before.square()
        y = self.down(torch.tanh(h * self.before)) @ self.square
        self.scale, self.before = self.before, self.scale
        self.square = self.square.t()
        return y.square().mean()


class State(nn.Module):
    """A state that is kept over calls."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(8, 8), nn.Linear(8, 4)
        self.register_buffer("h", torch.zeros(8, 8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x, self.h)
        self.h = h.detach()
        return self.out(h).square().mean()


class Largest(Layers):
    """Calls with one ``out`` and with two."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        with torch.no_grad():
            torch.mul(self.scale, 0.5, out=self.scale)
            values, places = h.new_empty(12), torch.empty(12, dtype=torch.long)
            found = torch.max(h, 0, out=(values, places))
            self.scale.add_(found[0] + values)
        picked = h.gather(0, places[None])
        return self.down(torch.tanh(h * self.scale)).square().mean() + picked.mean()


class Normed(nn.Module):
    def __init__(self, norm: Callable[[nn.Linear], Any]) -> None:
        super().__init__()
        self.up, self.down = norm(nn.Linear(8, 12)), norm(nn.Linear(12, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x))).square().mean()


# --- Kinds ------------------------------------------------------------------------------------


def _batches(count: int = 3) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    made = torch.randn(count, 8, 8, generator=generator, dtype=torch.float64)
    return [(x,) for x in made]


def running() -> Kind:
    return Kind(Running, _batches())


def running_twice() -> Kind:
    """Two forwards before one backward."""
    return Kind(Running, _batches(), step=lambda m, x: m(x) + m(x * 2))


def in_place() -> Kind:
    return Kind(InPlace, _batches())


def returned() -> Kind:
    return Kind(Returned, _batches(), step=lambda m, x: m(x)[0])


def old_in_loss() -> Kind:
    return Kind(Returned, _batches(), step=_with_old)


def _with_old(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss, old = module(x)
    total: torch.Tensor = loss * old.sum()
    return total


def changing() -> Kind:
    return Kind(Changing, _batches())


def state() -> Kind:
    return Kind(State, _batches())


def largest() -> Kind:
    return Kind(Largest, _batches())


def spectral() -> Kind:
    return Kind(lambda: Normed(parametrizations.spectral_norm), _batches())


def spectral_of_hooks() -> Kind:
    return Kind(lambda: Normed(spectral_norm), _batches())


def spectral_twice() -> Kind:
    """Real and fake rows before one backward."""
    made = lambda: Normed(parametrizations.spectral_norm)  # noqa: E731
    return Kind(made, _batches(), step=lambda m, x: m(x) - m(x * 2))


def weight_is_read() -> Kind:
    """Its norm is a part of the loss; reading it moves the vectors of the norm."""
    made = lambda: Normed(parametrizations.spectral_norm)  # noqa: E731
    return Kind(made, _batches(), step=lambda m, x: m(x) + m.up.weight.square().sum())


KINDS = [
    running,
    running_twice,
    in_place,
    returned,
    old_in_loss,
    changing,
    state,
    largest,
    spectral,
    spectral_of_hooks,
    spectral_twice,
    weight_is_read,
]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_memory_is_that_of_one_process(kind: Callable[[], Kind], world: int) -> None:
    found = run_ranks(world, "tests.distributed.kinds:check", f"{HERE}:{kind.__name__}")
    assert found == [[]] * world


# --- Writes between forward and backward ------------------------------------------------------


def _write_input(module: nn.Module, x: torch.Tensor) -> None:
    x.add_(1)


def _step(module: nn.Module, x: torch.Tensor) -> None:
    for parameter in module.parameters():
        parameter.mul_(0.5)


def _step_together(module: nn.Module, x: torch.Tensor) -> None:
    torch._foreach_mul_(list(module.parameters()), 0.5)


WRITES = {"input": _write_input, "step": _step, "together": _step_together}


def _add_to(data: torch.Tensor) -> None:
    data += 0.1


# What one process does not see, and neither do plans that run nothing again.
DATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "multiplied": lambda data: data.mul_(0.5),
    "copied": lambda data: data.copy_(data * 0.5),
    "an item": lambda data: data.__setitem__(0, 0.5),
    "added": _add_to,
}


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.mid, self.down = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.mid(torch.tanh(self.up(x))))).square().mean()


def _error_of(loss: torch.Tensor) -> str:
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)
    return ""


def written_between(name: str) -> tuple[int, list[str]]:
    """How many plans refuse it, and which gradients of others are wrong."""
    torch.set_default_dtype(torch.float64)
    kind = Kind(Plain, _batches(1))
    (rows,) = kind.batches[0]
    torch.manual_seed(0)
    one = Plain()
    one(rows).backward()
    refused, wrong = 0, []
    for label, plan in strategies(kind):
        torch.manual_seed(0)
        parallel, x = parallelize(Plain(), plan), rows.clone()
        loss = parallel(x)
        with torch.no_grad():
            WRITES[name](parallel, x)
        error = _error_of(loss)
        if error:
            refused += 1
            wrong += [] if "modified" in error else [f"{label}: {error}"]
            continue
        for (what, p), q in zip(parallel.named_parameters(), one.parameters(), strict=True):
            if not torch.allclose(whole(p.grad), q.grad, rtol=1e-9, atol=1e-12):  # type: ignore[arg-type]
                wrong.append(f"{label}: {what}")
    return refused, wrong


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_between_forward_and_backward_does_no_harm(name: str) -> None:
    """It is refused, or backward has what it needs."""
    for refused, wrong in run_ranks(2, f"{HERE}:written_between", name):
        assert not wrong
        assert refused


def data_between(name: str) -> tuple[int, list[str]]:
    """The same for what is written through ``.data``; gradients are those of one process."""
    torch.set_default_dtype(torch.float64)
    kind = Kind(Plain, _batches(1), recompute=True)
    (x,) = kind.batches[0]
    torch.manual_seed(0)
    one = Plain()
    refused, wrong = 0, []
    loss = one(x)
    for parameter in one.parameters():
        DATA[name](parameter.data)
    loss.backward()
    for label, plan in strategies(kind):
        torch.manual_seed(0)
        parallel = parallelize(Plain(), plan)
        loss = parallel(x)
        for parameter in parallel.parameters():
            DATA[name](parameter.data)
        error = _error_of(loss)
        if error:
            refused += 1
            wrong += [] if "through its .data" in error else [f"{label}: {error}"]
            continue
        for (what, p), q in zip(parallel.named_parameters(), one.parameters(), strict=True):
            if not torch.allclose(whole(p.grad), q.grad, rtol=1e-9, atol=1e-12):  # type: ignore[arg-type]
                wrong.append(f"{label}: {what}")
    return refused, wrong


@pytest.mark.parametrize("name", DATA)
def test_what_runs_again_does_not_take_what_was_written_through_data(name: str) -> None:
    """It is refused, or gradients are those of one process."""
    for refused, wrong in run_ranks(2, f"{HERE}:data_between", name):
        assert not wrong
        assert refused
