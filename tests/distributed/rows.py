"""Models whose rows are not dim 0, or whose outputs have none, against one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from tensoropt_torch import ParallelModule, parallelize
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.call_context import CallContext
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.parity import whole

ROWS, TIME, WIDTH = 8, 5, 6
SEEDS = (3, 8)  # of random strategies
TOLERANCE = 1e-9  # of float64, of numbers around 1

Outputs = Sequence[Tensor]


@dataclass
class Model:
    """A module, and a training step of it.

    Attributes:
        dims: in which dim each input has the rows; None: every rank has all of it.
        outputs: the same of outputs.
        own: the loss that a rank computes of its rows and of what has none.
        alike: a loss that all ranks compute alike.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    dims: Mapping[str, int | None]
    outputs: Sequence[int | None]
    own: Callable[[Outputs], Tensor]
    alike: Callable[[Outputs], Tensor] = field(default=lambda outputs: torch.zeros(()))


class TimeMajor(nn.Module):
    """(time, rows, width), and a first state (layers, rows, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, state: Tensor, table: Tensor) -> Outputs:
        hidden, last = self.rnn(x + table, state)
        return self.head(hidden), last, self.head(hidden[-1]).tanh()


class Tables(nn.Module):
    """What has rows, a scale, prototypes, and what depends on the batch without having any."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 12), nn.Linear(12, 4)
        self.scale = nn.Parameter(torch.tensor(0.3))
        self.prototypes = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Outputs:
        hidden = self.inner(x).tanh()
        out = self.outer(hidden)
        gram = hidden.T @ hidden / len(x)
        return out, self.scale.exp(), F.normalize(self.prototypes, dim=-1), gram, out.var()


class Positions(nn.Module):
    """Position ids (3, rows, time), and outputs that only look as if dim 0 had rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, ROWS)

    def forward(self, x: Tensor, positions: Tensor) -> Outputs:
        hidden = self.head(x + self.embedding(positions).sum(0)).tanh()
        return hidden, hidden.transpose(0, 1), self.head.weight * 2


def _numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


MODELS = {
    "time_major": Model(
        TimeMajor,
        lambda rows: (_numbers(TIME, rows, WIDTH), _numbers(1, rows, WIDTH), _numbers(1, 1, WIDTH)),
        {"x": 1, "state": 1, "table": None},
        (1, 1, 0),
        lambda o: o[0].square().sum() + (o[1] * o[2].sum()).sum(),
    ),
    "tables": Model(
        Tables,
        lambda rows: (_numbers(rows, WIDTH),),
        {"x": 0},
        (0, None, None, None, None),
        lambda o: F.softmax(o[0] @ o[2].T * o[1], -1)[:, 0].square().sum() * (1 + dist_rank()),
        lambda o: o[3].square().sum() + o[4],
    ),
    "positions": Model(
        Positions,
        lambda rows: (_numbers(rows, TIME, WIDTH), torch.randint(16, (3, rows, TIME))),
        {"x": 0, "positions": 1},
        (0, 1, None),
        lambda o: (o[0] @ o[2]).square().sum() + o[1][0].sum(),
    ),
}

_RANK: list[int] = []  # that the one process stands for


def dist_rank() -> int:
    return _RANK[-1] if _RANK else dist.get_rank()


def strategies(model: Model) -> Iterator[tuple[str, Plan]]:
    """Both ends of the frontier, and random ones."""
    torch.manual_seed(0)
    module = model.make()
    captured = capture(module, model.inputs(ROWS), context=CallContext(outputs="all"))
    named = model.dims.items()
    task = PlanningTask(
        captured,
        load_cluster("cpu"),
        inputs="sharded",
        whole_inputs=tuple(name for name, dim in named if dim is None),
        input_dims=tuple((name, dim) for name, dim in named if dim),
        search=SearchSettings(epsilon=1e-2),
    )
    world = dist.get_world_size()
    frontier = find_frontier(task, world)
    for index in sorted({0, len(frontier) - 1}):
        yield f"point {index} of {len(frontier)}", frontier[index].plan
    *_, (captured, settings) = task.graphs(world)
    space = make_space(captured, settings)
    for seed in SEEDS:
        strategy = space.random_strategy(seed)
        yield f"random strategy, seed {seed}", Plan.of(space, settings, captured, strategy)


def places(shares: Sequence[int]) -> list[tuple[int, int]]:
    """First row and number of rows of each rank."""
    return [(sum(shares[:rank]), count) for rank, count in enumerate(shares)]


def part(value: Any, dim: int | None, place: tuple[int, int]) -> Any:
    return value if dim is None else value.narrow(dim, *place)


def expected(model: Model, module: nn.Module, inputs: Outputs, shares: Sequence[int]) -> Outputs:
    """Of one process: the outputs; gradients are those of the sum of the ranks' losses."""
    outputs = module(*inputs)
    loss = model.alike(outputs)
    for rank, place in enumerate(places(shares)):
        _RANK.append(rank)
        rows = [part(o, dim, place) for o, dim in zip(outputs, model.outputs, strict=True)]
        loss = loss + model.own(rows)
        _RANK.pop()
    loss.backward()
    return outputs


def differences(model: Model, plan: Plan, shares: Sequence[int], passes: int = 1) -> Iterator[str]:
    torch.manual_seed(0)
    one = model.make()
    torch.manual_seed(0)
    parallel = parallelize(model.make(), plan)
    place = places(shares)[dist.get_rank()]
    for number in range(passes):
        inputs = model.inputs(sum(shares))
        wholes = expected(model, one, inputs, shares)
        own = [part(v, dim, place) for v, dim in zip(inputs, model.dims.values(), strict=True)]
        with parallel.no_sync() if number < passes - 1 else nullcontext():
            outputs = parallel(*own)
        (model.own(outputs) + model.alike(outputs)).backward()
        for index, (value, dim) in enumerate(zip(wholes, model.outputs, strict=True)):
            yield from _differs(f"output {index}", outputs[index], part(value, dim, place))
    yield from gradients(parallel, one)


def gradients(parallel: ParallelModule, one: nn.Module) -> Iterator[str]:
    theirs = dict(parallel.named_parameters())
    for name, parameter in one.named_parameters():
        found = theirs[name].grad
        assert found is not None and parameter.grad is not None
        yield from _differs(f"gradient of {name}", whole(found), parameter.grad)


def _differs(what: str, got: Tensor, wanted: Tensor) -> Iterator[str]:
    if got.shape != wanted.shape:
        yield f"{what}: {list(got.shape)} instead of {list(wanted.shape)}"
    elif not torch.allclose(got, wanted, TOLERANCE, TOLERANCE):
        yield f"{what} is off by {float((got - wanted).abs().max())}"


def check(name: str) -> list[str]:
    """On every rank: what is wrong with a model under each strategy, also where gradients of
    several passes are added up, and where the ranks have unequal shares."""
    torch.set_default_dtype(torch.float64)
    model, world = MODELS[name], dist.get_world_size()
    equal = [ROWS // world] * world
    unequal = [ROWS // world - 1] * (world - 1) + [ROWS // world + world]
    found = []
    for label, plan in strategies(model):
        cases = {"": (equal, 1), ", accumulated": (equal, 2), ", unequal": (unequal, 1)}
        for how, (shares, passes) in cases.items():
            found += [f"{label}{how}: {d}" for d in differences(model, plan, shares, passes)]
    return found


# --- Loops that train on the mean of the ranks' losses ---------------------------------------


class OwnLoss(nn.Module):
    """Returns a loss of its own beside rows, which are of the kind of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = x + self.outer(self.inner(x).tanh())
        return {"loss": y.square().mean(), "y": y, "weight": self.outer.weight.sum()}


def rollout(
    module: nn.Module, x: Tensor, rows: Callable[[Tensor], Sequence[Tensor]], first_rank: int
) -> Tensor:
    """The mean of the losses of the shares that ``rows`` gives, from this rank's on."""
    first = module(x)
    second = module(first["y"])
    beside = module(x * 2)
    shares = [
        own.pow(4).mean() + other.cos().mean() + first["weight"] ** 2 * (rank + 1)
        for rank, (own, other) in enumerate(
            zip(rows(second["y"]), rows(beside["y"]), strict=True), first_rank
        )
    ]
    return first["loss"] + second["loss"] * 3 + sum(shares) / len(shares)  # type: ignore[no-any-return]


def check_rollout(_: None) -> list[str]:
    torch.set_default_dtype(torch.float64)
    world, rank = dist.get_world_size(), dist.get_rank()
    model = Model(OwnLoss, lambda rows: (_numbers(rows, WIDTH),), {"x": 0}, (), lambda o: o[0])
    found = []
    for label, plan in strategies(model):
        for passes in (1, 2):
            torch.manual_seed(0)
            one = OwnLoss()
            torch.manual_seed(0)
            parallel = parallelize(OwnLoss(), plan)
            parallel.averages_losses = True
            for number in range(passes):
                x = _numbers(ROWS, WIDTH).requires_grad_()
                rollout(one, x, lambda whole: whole.chunk(world), 0).backward()
                own = x.detach().chunk(world)[rank].clone().requires_grad_()
                with parallel.no_sync() if number < passes - 1 else nullcontext():
                    loss = rollout(parallel, own, lambda share: [share], rank)
                loss.backward()
                assert x.grad is not None and own.grad is not None
                # Of the rank's own loss, which is one of those whose mean is trained on.
                found += list(_differs("input", own.grad, world * x.grad.chunk(world)[rank]))
            found += [f"{label}, {passes} passes: {d}" for d in gradients(parallel, one)]
    return found
