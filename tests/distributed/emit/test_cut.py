"""Passes that keep gradients, and micro-batches, as compiled graphs: what they leave is what they
leave operator by operator, and in one process."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tensoropt_torch import api
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.module.parallelize import parallelize
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tests.distributed.harness import run_ranks
from tests.distributed.models import Case, make
from tests.distributed.parity import Job, optimizer_of, plans, share, whole

HERE = "tests.distributed.emit.test_cut"
TRACED = "aot_eager"
F64 = torch.float64
JOBS = [
    (2, Job("mlp", torch.float64, points=2, randoms=4, compile=TRACED, inputs="sharded")),
    (2, Job("mlp", torch.float64, points=2, randoms=6, compile=TRACED, micro_batches=2)),
    (1, Job("gpt", torch.float64, points=1, randoms=0, compile=TRACED, micro_batches=2)),
]
SLOW_JOBS = [
    (
        2,
        Job("odd_fused", F64, points=1, randoms=3, compile=TRACED, micro_batches=2, tolerance=1e-4),
    ),
    (2, Job("gpt", torch.float64, points=2, randoms=6, compile=TRACED, recompute=True)),
    (2, Job("gpt_tied", torch.float64, points=2, randoms=4, compile=TRACED, micro_batches=2)),
    (4, Job("transformer", torch.float64, points=2, randoms=4, compile=TRACED, micro_batches=2)),
    (4, Job("gpt", torch.float64, points=2, randoms=4, compile=TRACED, micro_batches=2)),
    (2, Job("gpt", torch.float64, points=2, randoms=2, compile=True, micro_batches=2)),
]
# Whether passes reduce their gradients; after the last of each, an optimizer makes a step.
PASSES = [[True], [False, False, True], [True, False], [False]]

Left = dict[str, torch.Tensor]


def passes(module: nn.Module, loss_of: object) -> Iterator[tuple[str, Left]]:
    """The gradients after each pass, and parameters after steps, with losses."""
    optimizer = optimizer_of(module)
    assert callable(loss_of)
    for number, group in enumerate(PASSES):
        for index, reduces in enumerate(group):
            keeping = nullcontext() if reduces else getattr(module, "no_sync", nullcontext)()
            with keeping:
                loss = loss_of(module)
                loss.backward()
            own = dict(module.named_parameters())
            left = {n: whole(p.grad) for n, p in own.items() if p.grad is not None}
            yield f"pass {number}.{index}", {"loss": loss.detach(), **left}
        optimizer.step()
        optimizer.zero_grad()
        yield f"step {number}", {n: whole(p) for n, p in module.named_parameters()}
        with torch.no_grad():
            loss = loss_of(module)
        yield f"evaluation {number}", {"loss": loss}


def differences(
    got: nn.Module, expected: nn.Module, case: Case, inputs: object, tolerance: float
) -> Iterator[str]:
    theirs = passes(expected, lambda m: replace(case, model=m).loss())
    for (name, own), (_, right) in zip(passes(got, inputs), theirs, strict=True):
        if own.keys() != right.keys():
            yield f"{name}: {sorted(own.keys() ^ right.keys())}"
            continue
        for key, tensor in own.items():
            scale = float(right[key].abs().max()) + 1e-3
            error = float((tensor - right[key]).abs().max()) / scale
            if not error < tolerance:
                yield f"{name}: {key} is off by {error}"


def in_passes(job: Job) -> tuple[int, int, list[str], int]:
    """How many strategies there were, how many of them ran as graphs in all passes that keep
    gradients or have micro-batches, what differs, and how many graphs Dynamo has made."""
    device = torch.device("cpu")
    case = make(job.model, job.dtype, job.rows)
    context: RankContext | None = None
    wrong: list[str] = []
    count = as_graphs = 0
    counters.clear()
    for name, plan in plans(case, job):
        sizes = [size for size, _ in plan.settings.mesh_axes]
        context = context or RankContext.make(sizes, device)
        assert plan.captured is not None
        inputs = share((*case.args, *case.targets), job.inputs)
        module = parallelize(
            copy.deepcopy(case.model), plan.captured, plan, device, context, compile=job.compile
        )
        alone = copy.deepcopy(case.model)
        allowed = job.tolerance or 1e-8
        found = differences(module, alone, case, lambda m, i=inputs: m(*i), allowed)
        wrong += [f"{name}: {text}" for text in found]
        count += 1
        as_graphs += is_in_graphs(module, job)
    return count, as_graphs, wrong, counters["stats"]["unique_graphs"]


def is_in_graphs(module: ParallelModule, job: Job) -> bool:
    base = programs_of(module).base
    cuts = [base._cuts.get(reduces) for reduces in ((True, False) if base.batch else (False,))]
    return all(cut is not None and cut.num_graphs == 1 and not cut.reason for cut in cuts)


def in_words(value: int | Job) -> str:
    if isinstance(value, int):
        return f"{value} ranks"
    return f"{value.model} {value.inputs} {value.micro_batches} {value.compile}"


def assert_as_one_process(world_size: int, job: Job) -> None:
    for count, as_graphs, wrong, dynamo in run_ranks(world_size, f"{HERE}:in_passes", job, 580):
        assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:5])
        assert 1 <= as_graphs <= count
        assert dynamo == 0 or as_graphs < count


@pytest.mark.parametrize(("world_size", "job"), JOBS, ids=in_words)
def test_passes_equal_those_of_one_process(world_size: int, job: Job) -> None:
    assert_as_one_process(world_size, job)


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "job"), SLOW_JOBS, ids=in_words)
def test_other_passes_equal_those_of_one_process(world_size: int, job: Job) -> None:
    assert_as_one_process(world_size, job)


class Two(nn.Module):
    """Two losses, which depend on different parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.trunk(x).tanh()
        return self.left(h).square().mean(), self.right(h).square().mean()


class One(Two):
    """The sum of both."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        left, right = super().forward(x)
        return left + right


def compiled(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, ParallelModule]:
    """Both alike, the second with its rows shared out."""
    task = PlanningTask(capture(model, (x,)), load_cluster("cpu"))
    (baseline,) = find_baselines(task, torch.distributed.get_world_size(), ("data parallel",))
    module = api.parallelize(copy.deepcopy(model), baseline.plan(0), compile=TRACED)
    return copy.deepcopy(model), module


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {n: None if p.grad is None else whole(p.grad) for n, p in module.named_parameters()}


def unequal(got: nn.Module, expected: nn.Module) -> list[str]:
    own, right = gradients(got), gradients(expected)
    return [
        name
        for name, theirs in right.items()
        if (own[name] is None) != (theirs is None)
        or (theirs is not None and not torch.allclose(own[name], theirs, rtol=1e-4, atol=1e-6))
    ]


def one_loss_a_pass(_: object) -> list[str]:
    """What is wrong if each pass reaches some parameters only."""
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    one, module = compiled(Two(), x)
    wrong = []
    for step, loss in enumerate((0, 1, 0)):
        for trained in (one, module):
            with module.no_sync() if step < 2 else nullcontext():
                torch.autograd.backward(trained(x)[loss])
        wrong += [f"pass {step}: {name}" for name in unequal(module, one)]
    return wrong


def test_what_no_loss_has_reached_is_not_kept() -> None:
    assert run_ranks(2, f"{HERE}:one_loss_a_pass") == [[]] * 2


def watched(_: object) -> list[str]:
    """What is wrong about gradients that hooks and ``torch.autograd.grad`` wait for."""
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    one, module = compiled(One(), x)
    for trained in (one, module):
        weight = trained.get_parameter("left.weight")
        weight.register_hook(lambda gradient: gradient * 2)
        for reduces in (False, False, True):
            with nullcontext() if reduces else module.no_sync():
                torch.autograd.backward(trained(x))
    wrong = unequal(module, one)
    found = []
    for trained in (one, module):
        weights = [trained.get_parameter(f"{n}.weight") for n in ("trunk", "right")]
        with module.no_sync():
            found.append([whole(g) for g in torch.autograd.grad(trained(x), weights)])
    wrong += [f"grad {i}" for i in (0, 1) if not torch.allclose(found[0][i], found[1][i])]
    cut = programs_of(module).base._cuts[False]
    return wrong if cut is not None and cut.num_graphs == 1 else ["no graph"]


def test_gradients_that_somebody_waits_for_are_sent() -> None:
    assert run_ranks(2, f"{HERE}:watched") == [[]] * 2
