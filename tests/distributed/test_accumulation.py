"""Gradients of several passes of backward are those of one process, reduced at once or
kept for later."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import emit
from tensoropt_torch.config import load_cluster
from tensoropt_torch.emit.module import ParallelModule
from tensoropt_torch.emit.parallelize import RankContext
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.space import make_planner
from tensoropt_torch.planner.task import PlanningTask
from tests.distributed.accumulation_loops import LOOPS, Run
from tests.distributed.harness import run_ranks
from tests.distributed.models import Case, make
from tests.distributed.parity import whole

HERE = "tests.distributed.test_accumulation"
CPU = torch.device("cpu")
TOLERANCE = 1e-9  # of float64, after some hundred steps


@dataclass(frozen=True)
class Job:
    model: str
    seeds: range


@dataclass(frozen=True)
class Strategy:
    name: str
    module: ParallelModule
    kinds_kept: frozenset[str]  # by tensor reuse


def strategies(case: Case, job: Job) -> Iterator[Strategy]:
    """Random ones, every other one with overlap."""
    captured = capture(case.model, case.args, **case.keywords)
    settings = PlanningTask(captured, load_cluster("cpu")).settings(dist.get_world_size())
    planner = make_planner(captured, settings)
    context = RankContext.make([size for size, _ in settings.mesh_axes], CPU)
    for seed in job.seeds:
        strategy = planner.random_strategy(seed)
        plan = Plan.of(replace(settings, overlap=seed % 2 == 0), captured, strategy)
        module = emit.parallelize(case.model, captured, plan, CPU, context)
        kinds = frozenset(edge["reuse"] for edge in planner.describe_edges(strategy))
        yield Strategy(f"random strategy, seed {seed}", module, kinds)


def one_process(case: Case) -> Run:
    mine = copy.deepcopy(case)

    def loss_of(batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return replace(mine, args=batch[: len(mine.args)], targets=batch[len(mine.args) :]).loss()

    return Run(mine.model, loss_of, (*mine.args, *mine.targets))


def on_ranks(module: ParallelModule, case: Case) -> Run:
    batch = (*case.args, *case.targets)
    return Run(module, lambda batch: module(*batch), batch, module.no_sync)


def differences(ours: nn.Module, theirs: nn.Module) -> Iterator[str]:
    """Of gradients and values; gradients are removed."""
    mine = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        a, b = mine[name].grad, parameter.grad
        if (a is None) != (b is None):
            yield f"one gradient of '{name}' is None"
        elif a is not None and b is not None and not is_close(whole(a), b):
            yield f"gradient of '{name}' is off by {float((whole(a) - b).abs().max())}"
        if not is_close(whole(mine[name]), parameter.detach()):
            yield f"'{name}' is off"
        mine[name].grad = parameter.grad = None
    own = dict(ours.named_buffers())
    for name, buffer in theirs.named_buffers():
        if not is_close(own[name], buffer):
            yield f"buffer '{name}' is off"


def is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= TOLERANCE * max(1.0, float(b.abs().max())))


def check(job: Job) -> tuple[list[str], frozenset[str]]:
    """Runs on every rank: what was wrong, and the kinds of tensor reuse that there were."""
    case = make(job.model, torch.float64)
    wrong, kinds = [], frozenset[str]()
    for strategy in strategies(case, job):
        ours, theirs = on_ranks(strategy.module, case), one_process(case)
        for loop in LOOPS:
            loop(ours)
            loop(theirs)
            found = list(differences(strategy.module, theirs.module))
            wrong += [f"{strategy.name}, {loop.__name__}: {found}"] if found else []
        kinds |= strategy.kinds_kept
    return wrong, kinds


@pytest.mark.parametrize(
    ("ranks", "model"), [(2, "gpt_tied"), (4, "mlp"), (4, "gpt_tied"), (2, "resnet")]
)
def test_loops_equal_one_process(ranks: int, model: str) -> None:
    start = random.randrange(1000)
    print(f"first seed {start}")
    for wrong, kinds in run_ranks(ranks, f"{HERE}:check", Job(model, range(start, start + 4))):
        assert not wrong, "\n".join(wrong[:8])
        assert "before" in kinds
