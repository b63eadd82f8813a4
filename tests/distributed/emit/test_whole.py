"""Steps that are compiled as one graph with their collectives compute what those do that run
operator by operator, bit for bit where nothing is fused, and what one process does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor

from tensoropt_torch import api
from tensoropt_torch.config import load_cluster
from tensoropt_torch.emit import ahead, whole
from tensoropt_torch.emit.compiler import Compile
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.runs.peak_memory import measure_peak_bytes
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.module.parallelize import parallelize
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.functional import Collective
from tensoropt_torch.tasks import Example, PlanningOptions, task_of
from tests.distributed.harness import run_ranks
from tests.distributed.models import make
from tests.distributed.parity import (
    TOLERANCE,
    Job,
    Trace,
    differences,
    optimizer_of,
    plans,
    share,
    train,
)

HERE = "tests.distributed.emit.test_whole"
TRACED = "aot_eager"
FEW: dict[str, Any] = {"dtype": torch.float64, "points": 2, "randoms": 3}
JOBS = [
    (2, Job("gpt", torch.float64, points=2, randoms=2, compile=TRACED)),
    (2, Job("mlp", torch.float64, points=2, randoms=6, compile=TRACED, inputs="sharded")),
    (2, Job("odd_fused", torch.float64, points=1, randoms=4, compile=TRACED)),
    (2, Job("resnet", compile=TRACED, inputs="sharded", batch_norm_groups=2, **FEW)),
    (4, Job("mlp", torch.float64, points=1, randoms=3, compile=TRACED)),
]
SLOW_JOBS = [
    (2, Job("odd_257", torch.float64, points=2, randoms=3, compile=TRACED)),
    (2, Job("llama", torch.float64, points=2, randoms=6, compile=TRACED, recompute=True)),
    (2, Job("gpt_tied", torch.float64, points=2, randoms=6, compile=TRACED, inputs="sharded")),
    (4, Job("transformer", torch.float64, points=2, randoms=4, compile=TRACED)),
    (4, Job("gpt", torch.float64, points=2, randoms=6, compile=TRACED, recompute=True)),
    (4, Job("odd_1009_tied", torch.float64, points=2, randoms=6, compile=TRACED)),
    (4, Job("llama", torch.float64, points=2, randoms=2, compile=True)),
    (2, Job("gpt", torch.float64, points=2, randoms=2, compile=True, recompute=True)),
    (2, Job("mixture", torch.float64, points=2, randoms=10, compile=TRACED)),
    (2, Job("resnet", compile=True, inputs="sharded", batch_norm_groups=2, **FEW)),
]


def in_words(value: int | Job) -> str:
    if isinstance(value, int):
        return f"{value} ranks"
    return f"{value.model} {value.inputs} {value.compile}"


def beside_eager(job: Job) -> tuple[int, int, list[str], int]:
    """How many strategies there were, how many of them ran as one graph, what they did otherwise
    than without compiling, and how many graphs Dynamo has made."""
    device = torch.device("cpu")
    case = make(job.model, job.dtype, job.rows)
    context: RankContext | None = None
    wrong: list[str] = []
    count = as_one = 0
    counters.clear()
    for name, plan in plans(case, job):
        sizes = [size for size, _ in plan.settings.mesh_axes]
        context = context or RankContext.make(sizes, device)
        assert plan.captured is not None
        inputs = share((*case.args, *case.targets), job.inputs)
        traces: list[Trace] = []
        for compile in (False, job.compile):
            module = parallelize(case.model, plan.captured, plan, device, context, compile=compile)
            traces.append(_trained(module, inputs))
        found = list(differences(traces[1], traces[0], TOLERANCE[job.dtype], 1e-12))
        wrong += [f"{name}: {text}" for text in found]
        count += 1
        if programs_of(module).base.is_compiled_whole:
            whole_step = programs_of(module).base.whole
            assert whole_step is not None and whole_step.num_graphs == 1
            as_one += 1
    return count, as_one, wrong, counters["stats"]["unique_graphs"]


def assert_as_eager(world_size: int, job: Job) -> None:
    for count, as_one, wrong, dynamo in run_ranks(world_size, f"{HERE}:beside_eager", job, 580):
        assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:5])
        assert 2 <= as_one <= count
        if as_one == count:
            assert dynamo == 0


@pytest.mark.parametrize(("world_size", "job"), JOBS, ids=in_words)
def test_strategies_as_without_compiling(world_size: int, job: Job) -> None:
    assert_as_eager(world_size, job)


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "job"), SLOW_JOBS, ids=in_words)
def test_other_strategies_as_without_compiling(world_size: int, job: Job) -> None:
    assert_as_eager(world_size, job)


class Net(nn.Module):
    """A lookup, a norm, two layers and dropout, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 16)
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 12)
        self.drop = nn.Dropout(0.3)

    def forward(self, ids: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.scores(ids).flatten(0, 1), y.flatten())

    def scores(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.up(self.norm(self.table(ids)))).relu()
        scores: torch.Tensor = self.down(h)
        return scores


def net() -> tuple[Net, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model = Net()
    generator = torch.Generator().manual_seed(1)
    ids, y = torch.randint(0, 12, (2, 8, 5), generator=generator)
    return model, (ids, y)


def data_parallel(model: nn.Module, inputs: Any, world: int) -> Plan:
    task = PlanningTask(capture(model, inputs), load_cluster("cpu"))
    (baseline,) = find_baselines(task, world, ("data parallel",))
    return baseline.plan(0)


def modules_of(_: object, backend: str = TRACED) -> Iterator[tuple[ParallelModule, Any]]:
    """One that is not compiled, and one that is, with the same seeds."""
    model, inputs = net()
    world = torch.distributed.get_world_size()
    plan = data_parallel(model, inputs, world)
    for compile in (False, backend):
        torch.manual_seed(3)
        yield api.parallelize(copy.deepcopy(model), plan, compile=compile), inputs


def same_bits(_: object) -> list[str]:
    """Of three steps with dropout, and an evaluation."""
    traces = []
    for module, inputs in modules_of(None):
        trace = _trained(module, inputs)
        module.eval()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                trace.losses.append(float(module(*inputs)))
        traces.append((trace, module))
    (expected, _), (got, module) = traces
    wrong = [] if got.losses == expected.losses else [f"{got.losses}, {expected.losses}"]
    for kind in ("gradients", "parameters"):
        ours, theirs = getattr(got, kind), getattr(expected, kind)
        wrong += [f"{kind} {n}" for n in theirs if not torch.equal(ours[n], theirs[n])]
    base = programs_of(module).base
    if not base.is_compiled_whole or base.whole is None or not base.whole.is_at_once:
        wrong.append("no graph as a whole, of one node")
    return wrong


@pytest.mark.parametrize("world_size", [1, 2])
def test_draws_are_the_same_bit_for_bit(world_size: int) -> None:
    assert run_ranks(world_size, f"{HERE}:same_bits") == [[]] * world_size


def asked(module: ParallelModule, inputs: Any, halves: bool) -> dict[str, torch.Tensor]:
    """Gradients of steps that do more than one backward; ``halves``: by one node of autograd."""
    torch.manual_seed(3)
    found: dict[str, torch.Tensor] = {}

    def note(name: str) -> None:
        found.update({f"{name} {n}": full(p.grad) for n, p in module.named_parameters()})

    for step in range(2):  # gradients are added to others
        module(*inputs).backward()
        note(f"added {step}")
        whole_step = programs_of(module).base.whole
        assert whole_step is not None and whole_step.is_at_once == (halves or step == 0)
        if not halves:
            whole_step._halves = None
    parameters = dict(module.named_parameters())
    found["asked for"] = full(torch.autograd.grad(module(*inputs), parameters["up.weight"])[0])
    handle = parameters["up.bias"].register_hook(lambda gradient: gradient * 2)
    module.zero_grad()
    module(*inputs).mul(3).backward()
    handle.remove()
    note("hooked")
    loss = module(*inputs)
    with torch.no_grad():
        parameters["down.weight"].mul_(1.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(RuntimeError, match=r"donated buffers|double backward"):
        module(*inputs).backward(create_graph=True)
    return found


def asked_of_both(_: object) -> list[str]:
    found = []
    for halves in (True, False):
        _, (module, inputs) = modules_of(None)
        found.append(asked(module, inputs, halves))
    return [name for name, value in found[1].items() if not torch.equal(found[0][name], value)]


def test_one_node_gives_the_gradients_that_autograd_gives() -> None:
    assert run_ranks(2, f"{HERE}:asked_of_both") == [[], []]


def refused_of(module: ParallelModule, inputs: Any, **options: bool) -> str:
    """Why a backward with these options cannot be; empty: it can, and another one as well."""
    module.zero_grad()
    loss = module(*inputs)
    try:
        loss.backward(**options)
        loss.backward()
    except RuntimeError as error:
        return str(error)
    return ""


def kept_graphs(_: object) -> list[str]:
    """What is said of them, and whether what is said helps."""
    _, (module, inputs) = modules_of(None)
    module(*inputs).backward()
    kept = refused_of(module, inputs, retain_graph=True)
    found = [] if "donated_buffer = False before the module is made" in kept else [f"kept: {kept}"]
    with torch._functorch.config.patch(donated_buffer=False):
        plain, (module, inputs) = modules_of(None)
        gradients = []
        for own in (plain[0], module):
            for _ in range(2):  # the first call compiles
                torch.manual_seed(5)
                reason = refused_of(own, inputs, retain_graph=True)
                found += [f"kept all the same: {reason}"] if reason else []
            gradients.append({name: full(p.grad) for name, p in own.named_parameters()})
        expected, got = gradients
        found += [name for name, value in got.items() if not torch.equal(value, expected[name])]
    derived = refused_of(module, inputs, create_graph=True)
    if "parallelized without compile=" not in derived:
        found.append(f"derived: {derived}")
    reason = refused_of(plain[0], inputs, create_graph=True)
    return [*found, f"derived all the same: {reason}"] if reason else found


def test_errors_of_graphs_that_are_kept_say_what_helps() -> None:
    assert run_ranks(2, f"{HERE}:kept_graphs") == [[], []]


class Normed(nn.Module):
    """Has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.down(self.norm(self.up(x)).relu()), y)


def averaged_statistics(_: object) -> list[Any]:
    """What differs after steps in which each rank normalises its own rows; and whether they were
    one graph."""
    torch.manual_seed(0)
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    model, inputs = Normed(), (torch.randn(16, 6), torch.randint(4, (16,)))
    options = PlanningOptions(inputs="sharded", measure=False)
    task = task_of(Example(model, inputs, batch_norm_groups=world), options)
    (baseline,) = find_baselines(task, world, ("data parallel",))
    plan, own = baseline.plan(0), [tensor.chunk(world)[rank].clone() for tensor in inputs]
    found = []
    for compile in (False, TRACED):
        module = api.parallelize(copy.deepcopy(model), plan, compile=compile)
        _trained(module, own)
        found.append({name: full(tensor) for name, tensor in module.state_dict().items()})
    wrong = [name for name in found[0] if not torch.equal(found[0][name], found[1][name])]
    base = programs_of(module).base
    is_one = base.is_compiled_whole and base.whole is not None and base.whole.is_at_once
    return [is_one, wrong]


def test_running_statistics_are_averaged_in_the_graph() -> None:
    assert run_ranks(2, f"{HERE}:averaged_statistics") == [[True, []]] * 2


class Two(nn.Module):
    """Two heads; of one of them only numbers that have no gradients are given besides."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.trunk(x).tanh()
        left, right = self.left(h), self.right(h)
        return left + right.detach(), right, left.argmax(-1)


def one_head_a_step(_: object) -> list[str]:
    """What differs from one process where each loss is of another output: weight decay moves what
    has a gradient of zeros, and leaves alone what has none."""
    torch.manual_seed(0)
    model, x = Two(), torch.randn(8, 16)
    plan = data_parallel(model, (x,), torch.distributed.get_world_size())
    wrong = []
    for compile in (False, TRACED, "eager"):
        one = copy.deepcopy(model)
        module = api.parallelize(copy.deepcopy(model), plan, compile=compile)
        traces = []
        for trained in (one, module):
            optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1, weight_decay=0.5)
            trace: list[bool] = []
            for step in range(4):
                optimizer.zero_grad()
                torch.autograd.backward(trained(x)[step % 2].square().mean())
                trace += [parameter.grad is None for parameter in trained.parameters()]
                optimizer.step()
            traces.append(trace)
        if traces[0] != traces[1] or True not in traces[0]:
            wrong.append(f"{compile}: other parameters have gradients")
        ours = {n: full(p) for n, p in module.named_parameters()}
        wrong += [
            f"{compile}: {name}"
            for name, parameter in one.named_parameters()
            if not torch.allclose(ours[name], parameter, rtol=1e-4, atol=1e-5)
        ]
    return wrong


def test_what_a_loss_does_not_reach_has_no_gradient() -> None:
    assert run_ranks(2, f"{HERE}:one_head_a_step") == [[]] * 2


def frozen_for_a_while(_: object) -> list[str]:
    """What differs in steps of which some train less: gradients are made for what trains then."""
    traces = []
    for module, inputs in modules_of(None):
        weight, found = module.get_parameter("up.weight"), []
        for trains in (True, False, True):
            weight.requires_grad_(trains)
            module.zero_grad()
            torch.autograd.backward(module(*inputs))
            found.append({n: full_gradient(p) for n, p in module.named_parameters()})
        traces.append(found)
    return [
        f"step {step}: {name}"
        for step, (ours, theirs) in enumerate(zip(*traces, strict=True))
        for name in theirs
        if not equal_gradients(ours[name], theirs[name])
    ]


def full_gradient(parameter: nn.Parameter) -> torch.Tensor | None:
    return None if parameter.grad is None else full(parameter.grad)


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def equal_gradients(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def test_parameters_may_be_frozen_between_steps() -> None:
    assert run_ranks(2, f"{HERE}:frozen_for_a_while") == [[]] * 2


def in_other_memory(_: object) -> list[bool]:
    """Whether inputs that lie otherwise, or are one tensor, give the same."""
    found = []
    (_, _), (module, (ids, y)) = modules_of(None)
    module.eval()
    expected = float(module(ids, y))
    found.append(float(module(ids.t().contiguous().t(), y)) == expected)
    twice = float(module(ids, ids))
    found.append(float(module(ids, ids.clone())) == twice != expected)
    return found


def test_inputs_may_lie_otherwise() -> None:
    assert run_ranks(2, f"{HERE}:in_other_memory") == [[True, True]] * 2


def out_of_range(_: object) -> str:
    """What is said of an id that no table has, which one rank has."""
    (_, _), (module, (ids, y)) = modules_of(None)
    module(ids, y)
    wrong = ids.clone()
    wrong[-1, -1] = 12
    try:
        module(wrong, y)
    except Exception as error:
        return str(error)
    return ""


def test_ids_are_checked() -> None:
    for text in run_ranks(2, f"{HERE}:out_of_range"):
        assert "12" in text and "range" in text


def kept_and_added(_: object) -> list[str]:
    """Gradients of passes with and without synchronisation."""
    gradients = []
    for module, inputs in modules_of(None):
        module.eval()
        module(*inputs).backward()
        with module.no_sync():
            module(*inputs).backward()
        module(*inputs).backward()
        gradients.append({n: p.grad.full_tensor() for n, p in module.named_parameters()})
    first, second = gradients
    return [n for n in first if not torch.allclose(second[n], first[n], rtol=1e-5, atol=1e-7)]


def test_gradients_are_kept_and_added() -> None:
    assert run_ranks(2, f"{HERE}:kept_and_added", None, 300) == [[], []]


class Shifted(nn.Module):
    """The gradient of what is added is that of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(8, 8), nn.Parameter(torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x) + self.shift
        return found


def of_the_caller(_: object) -> tuple[list[str], list[torch.Tensor]]:
    """Parameters whose gradients lie in the caller's tensor, where it has to be laid out for the
    first backward and not for others."""
    x = torch.rand(4, 8)
    task = PlanningTask(capture(Shifted(), (x,)), load_cluster("cpu"))
    (baseline,) = find_baselines(task, 1, ("data parallel",))
    module = api.parallelize(Shifted(), baseline.plan(0), compile=TRACED)
    for _ in range(2):  # the first of them compiles
        module(x).sum().backward()
        module.zero_grad()
    own = torch.ones(4, 8)
    module(x).backward(own)
    gradients = {n: p.grad.to_local() for n, p in module.named_parameters()}
    where = own.untyped_storage().data_ptr()
    theirs = [n for n, found in gradients.items() if found.untyped_storage().data_ptr() == where]
    return theirs, [gradients["shift"]]


def test_gradients_are_not_the_tensor_that_the_caller_gave() -> None:
    ((theirs, (gradient,)),) = run_ranks(1, f"{HERE}:of_the_caller", None, 300)
    assert theirs == [] and bool((gradient == 1).all())


def differing_graphs(_: object) -> list[Any]:
    """A rank whose compiler fails, or whose collectives are others: all run the other way."""
    found: list[Any] = []
    rank = torch.distributed.get_rank()
    group = torch.distributed.group.WORLD.group_name  # type: ignore[union-attr]
    see = ahead.Backend.see

    def fails(backend: ahead.Backend, module: torch.fx.GraphModule) -> list[Collective]:
        if rank == 1:
            raise RuntimeError("no registers left")
        return see(backend, module)

    def differs(backend: ahead.Backend, module: torch.fx.GraphModule) -> list[Collective]:
        more = [Collective("all_reduce", "", group)] if rank == 1 else []
        return see(backend, module) + more

    for instead in (fails, differs):
        ahead.Backend.see = instead  # type: ignore[method-assign]
        (plain, inputs), (module, _) = modules_of(None)
        expected, got = (_trained(m, inputs) for m in (plain, module))
        wrong = list(differences(got, expected, TOLERANCE[torch.float32], 1e-6))
        base = programs_of(module).base.whole
        assert isinstance(base, whole.WholeGraph)
        found.append((base.reason, wrong))
    return found


def _trained(module: nn.Module, inputs: Any) -> Trace:
    return train(module, lambda: module(*inputs))


def test_a_rank_whose_graph_differs_makes_all_go_the_other_way() -> None:
    for failed, differed in run_ranks(2, f"{HERE}:differing_graphs", None, 300):
        assert failed == ("rank 1: no registers left", [])
        assert differed == ("the collectives of the ranks' graphs differ", [])


def in_few_collectives(way: Compile) -> list[tuple[int, bool]]:
    """How many collectives a step of many layers has, with buckets and without; and whether it
    gives the same."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)], nn.Flatten(0))
    x = torch.randn(8, 8)
    plan = data_parallel(model, (x,), 2)
    counts = []
    see = ahead.Backend.see

    def counted(backend: ahead.Backend, module: torch.fx.GraphModule) -> list[Collective]:
        found = see(backend, module)
        counts.append(len(found))
        return found

    ahead.Backend.see = counted  # type: ignore[method-assign]
    found = []
    for compile in (False, way):
        module = api.parallelize(copy.deepcopy(model), plan, compile=compile)
        optimizer_of(module)
        module(x).sum().backward()
        found.append([p.grad.full_tensor() for p in module.parameters()])
    return [(sum(counts), all(map(torch.allclose, *found)))]


@pytest.mark.parametrize("way", [TRACED, True])
def test_gradients_are_summed_in_buckets(way: Compile) -> None:
    for ((count, same),) in run_ranks(2, f"{HERE}:in_few_collectives", way, 300):
        assert same
        assert 0 < count <= 2


def peaks(_: object) -> list[float]:
    """Of steps as they are, and compiled, whose gradients are sent in one bucket."""
    torch.manual_seed(0)
    layers = [module for _ in range(6) for module in (nn.Linear(128, 128), nn.ReLU())]
    model, x = nn.Sequential(*layers, nn.Flatten(0)), torch.randn(8, 128)
    plan = data_parallel(model, (x,), 2)
    found = []
    for compile in (False, True):
        module = api.parallelize(copy.deepcopy(model), plan, compile=compile)
        optimizer = optimizer_of(module)

        def step(module: nn.Module = module, optimizer: Any = optimizer) -> None:
            module(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        found.append(float(measure_peak_bytes(module, optimizer, step, x)))
    return found


def test_a_compiled_step_needs_no_more_memory() -> None:
    for plain, compiled in run_ranks(2, f"{HERE}:peaks", None, 300):
        assert compiled <= 1.05 * plain
