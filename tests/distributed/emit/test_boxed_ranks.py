"""Steps of several ranks as one function of each: bit for bit those that run operator by operator,
with the same collectives, whatever is split."""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tensoropt_torch import api
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import ParallelModule, parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.operators import OPS
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.ops import collective_counts, reset_collective_counts
from tensoropt_torch.space.search_space import make_space
from tests.distributed.emit import test_whole
from tests.distributed.emit.test_whole import data_parallel
from tests.distributed.harness import run_ranks
from tests.distributed.models import make
from tests.distributed.parity import Job, optimizer_of, plans, share

HERE = "tests.distributed.emit.test_boxed_ranks"
STEPS = 4
F32 = torch.float32
JOBS = [
    Job("gpt", F32, points=1, randoms=2, recompute=True),
    Job("odd_257_tied", F32, points=1, randoms=1, inputs="sharded"),
    Job("resnet", F32, points=1, randoms=1, inputs="sharded"),
]
SLOW_JOBS = [
    (2, Job("gpt", F32, points=4, randoms=12, baselines=True)),
    (2, Job("gpt", F32, points=6, randoms=12, recompute=True)),
    (2, Job("gpt_tied", F32, points=4, randoms=8, inputs="sharded", baselines=True)),
    (2, Job("llama", torch.bfloat16, points=4, randoms=8, reduce_dtype="compute")),
    (2, Job("resnet", F32, points=4, randoms=8, inputs="sharded", baselines=True)),
    (2, Job("resnet", F32, points=2, randoms=4, inputs="sharded", batch_norm_groups=2)),
    (2, Job("vgg", F32, points=4, randoms=8, recompute=True)),
    (2, Job("odd_1009_tied", F32, points=4, randoms=8)),
    (2, Job("odd_channels", F32, points=4, randoms=8)),
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


def unequal(one: dict[str, Any], other: dict[str, Any], tolerance: float = 0) -> list[str]:
    def same(found: Any, expected: Any) -> bool:
        if not isinstance(found, torch.Tensor):
            return bool(found == expected)
        return torch.equal(found, expected) or torch.allclose(found, expected, 0, tolerance)

    assert one.keys() == other.keys()
    return [name for name, found in one.items() if not same(found, other[name])]


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


# --- What is asked of a step


class Net(test_whole.Net):
    """Its outputs are scores."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.scores(ids) + self.down.bias  # whose gradients are added up


def ids(seed: int) -> torch.Tensor:
    return torch.randint(0, 12, (8, 4), generator=torch.Generator().manual_seed(seed))


def step(module: nn.Module, seed: int) -> torch.Tensor:
    loss: torch.Tensor = module(ids(seed)).square().mean()
    loss.backward()
    return loss.detach()


def plainly(module: ParallelModule) -> list[Any]:
    return [step(module, 1)]


def accumulated(module: ParallelModule) -> list[Any]:
    return [step(module, seed) for seed in range(3)]


def without_sync(module: ParallelModule) -> list[Any]:
    with module.no_sync():
        found = [step(module, 1)]
    return [*found, step(module, 2)]


def kept_and_scaled(module: ParallelModule) -> list[Any]:
    """What was kept is changed, or waited for, before it is reduced."""
    with module.no_sync():
        found = [step(module, seed) for seed in range(2)]
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        weight = module.up.weight
        (own,) = torch.autograd.grad(module(ids(5)).square().mean(), [weight])
        loss = module(ids(6)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    module.down.weight.grad = None
    return [*found, local(own), step(module, 3), step(module, 4)]


def retained(module: ParallelModule) -> list[Any]:
    loss = module(ids(1)).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return [loss.detach()]


def two_forwards(module: ParallelModule) -> list[Any]:
    losses = [module(ids(seed)).square().mean() for seed in range(2)]
    for loss in losses:
        loss.backward()
    return [loss.detach() for loss in losses]


def expanded(module: ParallelModule) -> list[Any]:
    """Gradients that lie in memory otherwise, with the same bits."""
    found = []
    for loss in (module(ids(1)).sum(), module(ids(2)).mul(2).sum(), module(ids(3)).mT.mul(2).sum()):
        loss.backward()
        found.append(loss.detach())
    return found


def hooked(module: ParallelModule) -> list[Any]:
    seen: list[Any] = []
    handle = module.up.weight.register_hook(lambda g: seen.append(local(g)))
    step(module, 1)
    handle.remove()
    return seen


def evaluated(module: ParallelModule) -> list[Any]:
    with torch.no_grad():
        return [module(ids(1))]


def twice_differentiated(module: ParallelModule) -> list[Any]:
    loss = module(ids(1)).square().mean()
    gradients = torch.autograd.grad(loss, [module.up.weight], create_graph=True)
    gradients[0].square().sum().backward()
    return [loss.detach()]


ASKED = [
    plainly,
    accumulated,
    without_sync,
    kept_and_scaled,
    retained,
    two_forwards,
    expanded,
    hooked,
    evaluated,
    twice_differentiated,
]


def ask(randoms: int) -> list[str]:
    """Of a plan of data parallelism and of random strategies, before and after recording."""
    torch.manual_seed(0)
    model = Net()
    captured = capture(model, (ids(0),))
    task = PlanningTask(captured, load_cluster("cpu"))
    settings = task.settings(dist.get_world_size())
    space = make_space(captured, settings)
    found = [data_parallel(model, (ids(0),), dist.get_world_size())]
    found += [Plan.of(space, settings, captured, space.random_strategy(s)) for s in range(randoms)]
    wrong = []
    for number, plan in enumerate(found):
        for function in ASKED:
            modules = [
                api.parallelize(copy.deepcopy(model), plan, check_capture=False) for _ in range(2)
            ]
            one_by_one(modules[1])
            states = []
            for module in modules:
                torch.manual_seed(7)
                got = [step(module, 1)]
                module.zero_grad()
                for seed in range(2):
                    got += function(module)
                    got += [step(module, seed)]
                    got += state(module).values()
                    module.zero_grad()
                states.append({str(i): value for i, value in enumerate(got)})
            label = f"plan {number}, {function.__name__}"
            # Forward runs again for them: sums of gradients are in another order.
            differ = unequal(*states, 1e-8 if function is twice_differentiated else 0)
            wrong += [f"{label}: {differ[:5]}"] if differ else []
            boxed = programs_of(modules[0]).base.boxed
            if boxed is None or boxed.reason:
                wrong.append(f"{label}: {how(modules[0])}")
    return wrong


@pytest.mark.parametrize("randoms", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_whatever_is_asked_is_what_operators_one_by_one_give(randoms: int) -> None:
    assert run_ranks(2, f"{HERE}:ask", randoms) == [[], []]


def accumulating(_: None) -> list[str]:
    """What is recorded of passes that keep gradients, add to them, and reduce them."""
    model = Net()
    module = api.parallelize(model, data_parallel(model, (ids(0),), dist.get_world_size()))
    for turn in range(4):
        for seed in range(3):
            with module.no_sync() if seed < 2 else nullcontext():
                step(module, 3 * turn + seed)
        module.zero_grad()
        for seed in range(2):
            step(module, seed)
        module.zero_grad()
    base = programs_of(module).base
    steps = {"plain": base.boxed, "keeping": base._passes[False], "adding": base._passes[True]}
    return [
        f"{name}: {boxed and boxed.reason}"
        for name, boxed in steps.items()
        if boxed is None or boxed.reason or (len(boxed._programs), boxed._recordings) != (1, 1)
    ]


def test_passes_that_keep_gradients_are_recorded_once() -> None:
    assert run_ranks(2, f"{HERE}:accumulating") == [[], []]


class _Looks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operator."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def unlike(_: None) -> list[str]:
    """Each rank runs some steps as they were recorded, while others run operator by operator."""
    model, inputs = Net(), (ids(0),)
    plan = data_parallel(model, inputs, dist.get_world_size())
    modules = [api.parallelize(copy.deepcopy(model), plan) for _ in range(2)]
    one_by_one(modules[1])
    states = []
    for module in modules:
        torch.manual_seed(7)
        found: list[Any] = []
        for turn in range(6):
            looks = turn % dist.get_world_size() == dist.get_rank()
            with _Looks() if looks else nullcontext():
                found.append(step(module, turn))
            found += state(module).values()
            module.zero_grad()
        states.append({str(i): value for i, value in enumerate(found)})
    return unequal(*states) + ([how(modules[0])] if how(modules[0]) else [])


def test_ranks_may_run_one_step_in_both_ways() -> None:
    assert run_ranks(2, f"{HERE}:unlike") == [[], []]


def calls_of(_: None) -> tuple[int, int]:
    """How many calls begin gradients, and how many gradients there are."""
    module = api.parallelize(Net(), data_parallel(Net(), (ids(0),), dist.get_world_size()))
    for _turn in range(2):
        step(module, 1)
        module.zero_grad()
    seen: list[Any] = []

    class Counts(_Looks):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if func is OPS.begin_gradients.default:
                seen.append(len(args[0]))
            return super().__torch_dispatch__(func, types, args, kwargs)

    loss = module(ids(2)).square().mean()
    with Counts():
        loss.backward()
    return len(seen), sum(seen)


def test_a_bucket_takes_one_call() -> None:
    parameters = len([*Net().parameters()])
    assert run_ranks(2, f"{HERE}:calls_of") == [(1, parameters)] * 2
