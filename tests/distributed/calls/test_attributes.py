"""Attributes that forward reads and writes, numbers that change, and what draws numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tensoropt_torch import TensorOptError, auto_parallel
from tests.distributed.harness import run_ranks
from tests.distributed.kinds import Kind

ROWS = 8
MODULE = "tests.distributed.calls.test_attributes"


class Net(nn.Module):
    """A loss that depends on attributes of several sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.0)
        self.temperature = 1.0
        self.weights = {"loss": 1.0, "norm": 0.0}
        self.masks = [torch.ones(16)]
        self.activation: Callable[[torch.Tensor], torch.Tensor] = torch.tanh

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.activation(self.drop(self.a(x))) * self.masks[0]
        loss = F.cross_entropy(self.b(h) / self.temperature, y)
        return self.weights["loss"] * loss + self.weights["norm"] * h.square().mean()


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(ROWS, 8, generator=source, dtype=torch.float64),
            torch.randint(0, 4, (ROWS,), generator=source),
        )
        for _ in range(count)
    ]


def change(module: Any, number: int) -> None:
    """Attributes as a training loop sets them, and sets them back."""
    module.temperature = (1.0, 2.0, 1.0, 1.0, 1.0, 1.0)[number]
    module.weights["norm"] = (0.0, 0.0, 0.5, 0.0, 0.0, 0.0)[number]
    if number == 3:
        module.activation = torch.relu
        module.masks[0] = torch.linspace(0, 1, 16)
    if number == 4:
        module.masks[0][3] = 0.25
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.p = 1.0 if number == 5 else 0.0


def attributes() -> Kind:
    return Kind(Net, batches(6), between=change)


def set_before() -> Kind:
    def before(module: Any) -> None:
        module.temperature, module.weights["norm"] = 3.0, 0.5

    return Kind(Net, batches(2), before=before)


def set_after() -> Kind:
    def after(module: Any) -> None:
        module.temperature, module.weights["norm"] = 3.0, 0.5

    return Kind(Net, batches(2), after=after)


def anneal(module: Any, number: int) -> None:
    module.temperature = 1 + 0.3 * number
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
    module.weights["loss"] = 1.0


def annealed_attribute() -> Kind:
    return Kind(Net, batches(6), between=anneal, options={"max_variants": 3})


class Buffered(nn.Module):
    """Numbers that change beside buffers that do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.register_buffer("shift", torch.linspace(-1, 1, 16))
        self.temperature = 1.0

    def forward(self, x: torch.Tensor, y: torch.Tensor, beta: float) -> torch.Tensor:
        h = (self.norm(self.a(x)) + beta * self.shift).tanh()
        return F.cross_entropy(self.b(h) / self.temperature, y)


def cool(module: Any, number: int) -> None:
    module.temperature = 1 + 0.3 * number


def beside_buffers() -> Kind:
    calls = [(*batch, 0.1 * number) for number, batch in enumerate(batches(6))]
    return Kind(Buffered, calls, between=cool, options={"max_variants": 3})


class Annealed(nn.Module):
    """Numbers among its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, beta: float = 0.0, step: int = 0
    ) -> torch.Tensor:
        h = self.a(x).tanh()
        share = 0.5 * (1 + math.cos(math.pi * min(step, 4) / 4))
        loss = F.cross_entropy(self.b(h) * (1 + share), y)
        total: torch.Tensor = loss + beta * h.square().mean() + (1 - beta) ** 2 * h.abs().mean()
        return total


def annealed_arguments() -> Kind:
    calls = [(*batch, 0.1 * number, number) for number, batch in enumerate(batches(7))]
    return Kind(Annealed, calls, options={"max_variants": 6})


class Writes(nn.Module):
    """Puts a loss of its own, an activation and a text into attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
        self.shape_seen = ""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.a(x).tanh()
        self.b.aux_loss = h.square().mean()
        self.hidden = [h, {"detached": h.detach()}]
        self.shape_seen = str(tuple(x.shape[1:]))
        return F.cross_entropy(self.b(h), y)


def use_written(module: Any, *batch: Any) -> torch.Tensor:
    loss = module(*batch)
    assert module.shape_seen == "(8,)"
    assert len(module.hidden[1]["detached"]) == len(batch[0])
    found: torch.Tensor = loss + 0.5 * module.b.aux_loss
    return found


def written() -> Kind:
    return Kind(Writes, batches(3), step=use_written)


def written_of_shares() -> Kind:
    return Kind(Writes, batches(3), step=use_written, inputs="sharded")


class Cached(nn.Module):
    """Makes a mask once, and says that it has warned."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
        self.mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.linspace(0, 1, 16)
        if not getattr(self, "warned", False):
            self.warned = True
        return F.cross_entropy(self.b(self.a(x) * self.mask), y)


def cached() -> Kind:
    return Kind(Cached, batches(3))


KINDS = (
    "attributes",
    "set_before",
    "set_after",
    "annealed_attribute",
    "annealed_arguments",
    "beside_buffers",
    "written",
    "written_of_shares",
    "cached",
)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_give_what_one_process_gives(kind: str, world: int) -> None:
    found = run_ranks(world, "tests.distributed.kinds:check", f"{MODULE}:{kind}")
    assert found == [[]] * world


# --- What is refused, and by which words ----------------------------------------------------


def _refusal(action: Callable[[], Any]) -> str:
    try:
        action()
    except TensorOptError as error:
        return str(error)
    return "nothing was refused"


COLLECTED: list[torch.Tensor] = []


class Refused(nn.Module):
    """Does what a captured graph cannot do."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.a, self.what, self.calls = nn.Linear(8, 4), what, 0
        self.log: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        if self.what == "counter":
            self.calls += 1
            h = h * min(self.calls / 4, 1.0)
        if self.what == "list":
            self.log.append(h)
        if self.what == "global list":
            COLLECTED.append(h.detach())
        if self.what == "random" and random.random() < 0.5:
            h = h * 2
        loss: torch.Tensor = h.square().mean()
        return loss


def refusals(_: None) -> list[str]:
    x = torch.randn(ROWS, 8)
    found = []
    for what in ("counter", "list", "global list", "random"):
        action = Refused(what)
        found.append(_refusal(lambda m=action: auto_parallel(m, (x,), measure=False)))  # type: ignore[misc]
    return found


def test_state_in_attributes_lists_and_random_numbers_are_refused() -> None:
    for counter, collected, outside, drawn in run_ranks(2, f"{MODULE}:refusals"):
        assert "'calls'" in counter and "register_buffer" in counter
        assert "'log'" in collected
        assert "'COLLECTED' of tests.distributed.calls.test_attributes" in outside
        assert "random (at" in drawn and "test_attributes.py" in drawn and "torch.where" in drawn


def changed_parts(_: None) -> list[str]:
    x, y = batches(1)[0]
    x = x.to(torch.get_default_dtype())
    found = []
    for change_part in (
        lambda m, p: setattr(p, "b", nn.Linear(16, 4)),
        lambda m, p: setattr(m, "b", nn.Linear(16, 4)),
        lambda m, p: p.b.register_parameter("extra", nn.Parameter(torch.ones(1))),
    ):
        model = Net()
        parallel = auto_parallel(model, (x, y), measure=False)

        def change_and_call(change: Any = change_part, m: Any = model, p: Any = parallel) -> None:
            change(m, p)
            p(x, y)

        found.append(_refusal(change_and_call))
    return found


def test_other_modules_and_parameters_are_refused() -> None:
    for found in run_ranks(2, f"{MODULE}:changed_parts"):
        for text, name in zip(
            found, ("submodule 'b'", "submodule 'b' of the model", "'extra'"), strict=True
        ):
            assert name in text and ("plan again" in text or "parallelize again" in text)


def differing_ranks(_: None) -> list[str]:
    x, y = batches(1)[0]
    x = x.to(torch.get_default_dtype())
    model = Net()
    parallel = auto_parallel(model, (x, y), measure=False)
    parallel(x, y)
    parallel.temperature = 1.0 + dist.get_rank()
    found = [_refusal(lambda: parallel(x, y))]
    parallel.temperature = 1.0
    parallel(x, y)
    parallel.temperature, model.temperature = 2.0, 3.0
    found.append(_refusal(lambda: parallel(x, y)))
    model.temperature = 2.0
    parallel(x, y)
    return found


def test_ranks_and_the_model_have_to_agree_on_attributes() -> None:
    for ranks, models in run_ranks(2, f"{MODULE}:differing_ranks"):
        assert "temperature = 2.0" in ranks and "differently" in ranks
        assert "'temperature'" in models and "2.0" in models and "3.0" in models


class Config:
    def __init__(self) -> None:
        self.scale, self.saved_by = 2.0, ""


class Configured(Net):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(x, y) * self.config.scale


def changed_configurations(_: None) -> tuple[list[float], str]:
    """Losses; and what is said where ranks change what counts, in words."""
    x, y = batches(1)[0]
    x = x.to(torch.get_default_dtype())
    torch.manual_seed(0)
    parallel = auto_parallel(Configured(), (x, y), measure=False)
    losses = [float(parallel(x, y))]
    if dist.get_rank() == 0:
        parallel.config.saved_by = "rank 0"
    losses.append(float(parallel(x, y)))
    parallel.config.scale = 4.0
    losses.append(float(parallel(x, y)))
    parallel.config.scale = 5.0 + dist.get_rank()
    return losses, _refusal(lambda: parallel(x, y))


def test_of_a_configuration_counts_what_is_read() -> None:
    for (first, second, third), error in run_ranks(2, f"{MODULE}:changed_configurations"):
        assert first == second and abs(third - 2 * first) < 1e-5 * first
        assert "config.scale = 5.0" in error and "saved_by" not in error


def going_back(_: None) -> list[float]:
    """Losses with a value, another, and the first; then with the other set on the model, and how
    many variants there are."""
    x, y = batches(1)[0]
    x = x.to(torch.get_default_dtype())
    torch.manual_seed(0)
    model = Net()
    parallel = auto_parallel(model, (x, y), measure=False)
    found = []
    for where, value in ((parallel, 1.0), (parallel, 2.0), (parallel.original, 1.0), (model, 2.0)):
        where.temperature = value  # type: ignore[assignment]
        found.append(float(parallel(x, y)))
    return [*found, float(len(parallel.plan.variants))]


def test_old_values_find_the_old_variant() -> None:
    for first, second, third, fourth, variants in run_ranks(2, f"{MODULE}:going_back"):
        assert first == third != second == fourth
        assert variants == 1
