"""What every process does: strategies of one model against one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.coverage.bits import loss_of
from benchmarks.coverage.zoo import Example, make
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.parity import Trace, differences, labels, train, train_alone

# Largest relative difference. In float64 only the order of sums differs, but models
# that cast to float32 on the way may round another way; so do those in bfloat16,
# whose parameters are not compared: AdamW makes whole steps of rounded gradients.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Job:
    """How many strategies of which model."""

    model: str
    strategies: int


def check(job: Job) -> tuple[int, list[str]]:
    """The number of strategies that ran, and what was wrong with which."""
    example = in_float64(make(job.model))
    tolerance = example.tolerance or TOLERANCE[example.precision]
    expected = _train_alone(example, tolerance)
    context: RankContext | None = None
    wrong: list[str] = []
    count = 0
    for name, plan in plans(example, job.strategies):
        sizes = [size for size, _ in plan.settings.mesh_axes]
        context = context or RankContext.make(sizes, torch.device("cpu"))
        assert plan.captured is not None
        module = parallelize(example.model, plan.captured, plan, context.device, context)
        inputs = (*example.args, *example.targets)
        got = train(
            module, lambda module=module, inputs=inputs: loss_of(module(*inputs, **example.kwargs))
        )
        found = list(differences(got, expected, tolerance))
        if example.precision == torch.bfloat16:
            found = [text for text in found if not text.startswith("parameter")]
        if found:
            wrong.append(f"{name}: {found[:4]} under {labels(plan, job.model)}")
        count += 1
    return count, wrong


def in_float64(example: Example) -> Example:
    """Parameters and floating inputs in float64, if the model is made for that."""
    if example.precision != torch.float64:
        return example

    def cast(value: object) -> object:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if floating else value  # type: ignore[attr-defined]

    return replace(
        example,
        model=example.model.double(),
        args=tuple(cast(value) for value in example.args),
        kwargs={name: cast(value) for name, value in example.kwargs.items()},
        targets=tuple(cast(value) for value in example.targets),
    )


def plans(example: Example, count: int) -> Iterator[tuple[str, Plan]]:
    """Ends and knee of the frontier, then random strategies, ``count`` in all."""
    captured = capture(example.model, example.args, **example.keywords)
    task = PlanningTask(captured, load_cluster("cpu"))
    frontier = find_frontier(task, dist.get_world_size())
    chosen = {
        "the smallest": frontier.smallest,
        "the fastest": frontier.fastest,
        "the knee": frontier.knee,
    }
    for name, point in list(chosen.items())[:count]:
        yield name, point.plan
    settings = task.settings(dist.get_world_size())
    space = make_space(captured, settings)
    for seed in range(count - len(chosen)):
        strategy = space.random_strategy(seed)
        yield f"random strategy, seed {seed}", Plan.of(space, settings, captured, strategy)


def _train_alone(example: Example, tolerance: float) -> Trace:
    def loss(model: nn.Module) -> torch.Tensor:
        return loss_of(replace(example, model=model).output())

    return train_alone(example.model, loss, tolerance)
