"""Steps of several ranks as one function of each: bit for bit those that run operator by operator,
with the same collectives, whatever is split."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.module import ParallelModule, parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.runtime.ops import collective_counts, reset_collective_counts
from tests.distributed.harness import run_ranks
from tests.distributed.models import make
from tests.distributed.parity import Job, optimizer_of, plans, share

HERE = "tests.distributed.emit.test_boxed_ranks"
STEPS = 4
F32 = torch.float32
JOBS = [
    Job("gpt", F32, points=2, randoms=3, recompute=True),
    Job("odd_257_tied", F32, points=1, randoms=2, inputs="sharded"),
    Job("resnet", F32, points=1, randoms=2, inputs="sharded"),
]
SLOW_JOBS = [
    (2, Job("gpt", F32, points=4, randoms=12, baselines=True)),
    (2, Job("gpt", F32, points=6, randoms=12, recompute=True)),
    (2, Job("gpt_tied", F32, points=4, randoms=8, inputs="sharded", baselines=True)),
    (2, Job("llama", torch.bfloat16, points=4, randoms=8, reduce_dtype="float32")),
    (2, Job("resnet", F32, points=4, randoms=8, inputs="sharded", baselines=True)),
    (2, Job("resnet", F32, points=2, randoms=4, inputs="sharded", batch_norm_groups=2)),
    (2, Job("vgg", F32, points=4, randoms=8, recompute=True)),
    (2, Job("odd_1009_tied", F32, points=4, randoms=8)),
    (2, Job("odd_channels", F32, points=4, randoms=8, inputs="sharded", rows=5)),
    (2, Job("mlp", F32, points=2, randoms=6, micro_batches=2)),
    (2, Job("mixed", F32, points=4, randoms=8)),
    (2, Job("transformer", F32, points=4, randoms=8)),
    (2, Job("fused", F32, points=4, randoms=8)),
    (2, Job("recommender", F32, points=4, randoms=8)),
    (2, Job("lstm", F32, points=2, randoms=2)),
    (2, Job("mixture", F32, points=2, randoms=2)),
    (4, Job("gpt", F32, points=4, randoms=8, known=True, baselines=True)),
    (4, Job("llama", F32, points=4, randoms=8, recompute=True)),
    (4, Job("resnet", F32, points=2, randoms=6, inputs="sharded")),
]
# Whose operators are more than calls that can be recorded, under some strategies or all.
OTHERWISE = {"lstm", "mixture", "recommender"}


def in_words(value: int | Job) -> str:
    if isinstance(value, int):
        return f"{value} ranks"
    again = " recompute" if value.recompute else ""
    return f"{value.model} {value.inputs}{again}"


def one_by_one(module: ParallelModule) -> ParallelModule:
    """The same, operator by operator."""
    programs_of(module).base.boxed = None
    return module


def local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def state(module: nn.Module) -> dict[str, Any]:
    """What the rank has, and how its gradients lie."""
    found: dict[str, Any] = {n: local(t) for n, t in module.state_dict(keep_vars=True).items()}
    for name, p in module.named_parameters():
        found[f"{name}.grad"] = None if p.grad is None else local(p.grad)
        found[f"{name}.strides"] = None if p.grad is None else p.grad.to_local().stride()
    return found


def unequal(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    assert one.keys() == other.keys()
    return [
        name
        for name, found in one.items()
        if not (
            torch.equal(found, other[name])
            if isinstance(found, torch.Tensor)
            else found == other[name]
        )
    ]


def how(module: ParallelModule) -> str:
    """Whether its steps are recorded: empty, or why not."""
    boxed = programs_of(module).base.boxed
    if boxed is None:
        return "not boxed"
    if boxed.reason:
        return boxed.reason
    return "" if len(boxed._programs) == 1 else f"{len(boxed._programs)} programs"


def trained(module: ParallelModule, inputs: Any) -> list[dict[str, Any]]:
    """What each step leaves, and which collectives it had."""
    torch.manual_seed(3)
    optimizer = optimizer_of(module)
    found = []
    for _ in range(STEPS):
        reset_collective_counts()
        loss = module(*inputs)
        loss.backward()
        found.append(state(module) | {"loss": loss.detach(), "counts": collective_counts()})
        optimizer.step()
        optimizer.zero_grad()
    return found


def beside(job: Job) -> tuple[Counter[str], list[str]]:
    """How many strategies are recorded, and why others are not; and what differs."""
    device = torch.device("cpu")
    case = make(job.model, job.dtype, job.rows)
    context: RankContext | None = None
    ways: Counter[str] = Counter()
    wrong: list[str] = []
    for name, plan in plans(case, job):
        sizes = [size for size, _ in plan.settings.mesh_axes]
        context = context or RankContext.make(sizes, device)
        assert plan.captured is not None
        inputs = share((*case.args, *case.targets), job.inputs)
        modules = [
            parallelize(copy.deepcopy(case.model), plan.captured, plan, device, context)
            for _ in range(2)
        ]
        one_by_one(modules[1])
        steps = zip(*(trained(module, inputs) for module in modules), strict=True)
        for number, (one, other) in enumerate(steps):
            differ = unequal(one, other)
            wrong += [f"{name}, step {number}: {differ[:6]}"] if differ else []
        ways[how(modules[0])] += 1
    return ways, wrong


def of_all(jobs: list[Job]) -> list[tuple[Counter[str], list[str]]]:
    return [beside(job) for job in jobs]


def assert_alike(job: Job, found: tuple[Counter[str], list[str]]) -> None:
    ways, wrong = found
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:5])
    if job.model not in OTHERWISE and job.micro_batches == 1:
        assert set(ways) == {""}, ways


def test_strategies_train_bit_for_bit_as_operator_by_operator() -> None:
    for results in run_ranks(2, f"{HERE}:of_all", JOBS):
        for job, found in zip(JOBS, results, strict=True):
            assert_alike(job, found)


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "job"), SLOW_JOBS, ids=in_words)
def test_other_strategies_train_bit_for_bit(world_size: int, job: Job) -> None:
    for found in run_ranks(world_size, f"{HERE}:beside", job, 580):
        assert_alike(job, found)
