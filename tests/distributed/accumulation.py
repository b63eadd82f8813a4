"""What ranks do to compare gradients of several passes with those of one process."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch import _C
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.module.parallelize import RankContext
from tensoropt_torch.operators import OPS
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.edges import EdgeIndex
from tensoropt_torch.runtime import ops
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.step_code import steps_of
from tests.distributed.accumulation_loops import LOOPS, Run
from tests.distributed.models import Case, make
from tests.distributed.parity import whole

CAST = "aten.to.dtype"
CPU = torch.device("cpu")


class Tied(nn.Module):
    """One table used twice, a parameter that is used by two, and two whose gradients may be
    one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.shifts = nn.ParameterList(torch.zeros(4, 8) for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * self.scale + (self.shifts[0] + self.shifts[1])
        x = x + self.scale * self.down(torch.tanh(self.up(self.norm(x))))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Lora(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + self.up(self.down(x))
        return result


class Cast(nn.Module):
    """Parameters that are used in a dtype of fewer bits, as with autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, last = self.first, self.last
        x = nn.functional.linear(x.float(), first.weight.float(), first.bias.float())
        x = nn.functional.linear(x.tanh(), last.weight.float(), last.bias.float())
        return nn.functional.mse_loss(x, y.float())


def tied() -> Case:
    tokens = torch.randint(0, 12, (2, 4, 4), generator=torch.Generator().manual_seed(1))
    return Case(Tied().double(), (tokens[0], tokens[1]))


def lora() -> Case:
    case = tied()
    model = case.model.requires_grad_(False)
    model.up, model.down = Lora(model.up).double(), Lora(model.down).double()
    return case


def cast() -> Case:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(8, size, generator=generator).double() for size in (8, 4))
    return Case(Cast().double(), (x, y))


CASES = {
    "tied": tied,
    "lora": lora,
    "cast": cast,
    "resnet": lambda: make("resnet", torch.float64),
}
TOLERANCE = {"cast": 1e-4}  # of what is computed in float32; else of float64


@dataclass(frozen=True)
class Job:
    model: str
    seeds: range

    def case(self) -> Case:
        torch.manual_seed(0)
        return CASES[self.model]()

    @property
    def tolerance(self) -> float:
        return TOLERANCE.get(self.model, 1e-9)


@dataclass(frozen=True)
class Strategy:
    name: str
    module: ParallelModule
    space: _C.SearchSpace

    @property
    def reuses(self) -> frozenset[str]:
        """The kinds of tensor reuse that there are."""
        edges = self.space.edges_of(self.module.plan.choices.strategy(self.space))
        return frozenset(edge.saved.edge_word for edge in edges)


def strategies(case: Case, job: Job) -> Iterator[Strategy]:
    """Random ones, every other one with overlap, two of four with buckets."""
    captured = capture(case.model, case.args, **case.keywords)
    settings = PlanningTask(captured, load_cluster("cpu")).settings(dist.get_world_size())
    context = RankContext.make([size for size, _ in settings.mesh_axes], CPU)
    for seed in job.seeds:
        bucket_bytes = 0 if seed % 4 < 2 else settings.bucket_bytes
        own = replace(settings, overlap=seed % 2 == 0, bucket_bytes=bucket_bytes)
        space = make_space(captured, own)
        plan = Plan.of(space, own, captured, space.random_strategy(seed))
        module = parallelize(case.model, captured, plan, CPU, context)
        yield Strategy(f"random strategy, seed {seed}", module, space)


def one_process(case: Case) -> Run:
    mine = copy.deepcopy(case)

    def loss_of(batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return replace(mine, args=batch[: len(mine.args)], targets=batch[len(mine.args) :]).loss()

    return Run(mine.model, loss_of, (*mine.args, *mine.targets))


def on_ranks(module: ParallelModule, case: Case) -> Run:
    batch = (*case.args, *case.targets)
    return Run(module, lambda batch: module(*batch), batch, module.no_sync)


def differences(ours: nn.Module, theirs: nn.Module, tolerance: float) -> Iterator[str]:
    """Of gradients and values; gradients are removed."""

    def is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
        return bool((a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())))

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


@dataclass(frozen=True)
class Costs:
    """Of one strategy: collectives of passes, and bytes of gradients that wait.

    Attributes:
        reduced, kept, kept_again, reduced_last: collectives of a pass that reduces, of two
            that keep after it, and of one that reduces all.
        put_off: the collectives that send gradients to parameters.
        sizes: of what is kept, by the layouts; by ``.grad``; of all that was allocated after
            one pass and after two.
        bucketed: gradients of several parameters share collectives.
    """

    reduced: int
    kept: int
    kept_again: int
    reduced_last: int
    put_off: int
    sizes: tuple[int, int, int, int]
    bucketed: bool


def put_off(strategy: Strategy) -> tuple[int, int]:
    """Collectives on the way of gradients to parameters, from where they are kept; and the
    bytes of all gradients there."""
    plan = strategy.module.plan
    assert plan.captured is not None
    values = plan.captured.lowering.values
    space = strategy.space
    program = _C.RankProgram(space, plan.choices.strategy(space), dist.get_rank())
    edges = EdgeIndex.of(strategy.space).first
    collectives = num_bytes = 0
    for source in plan.captured.parameters:
        user = next(iter(source.placeholder.users))
        way = [user, source.placeholder] if str(user.target) == CAST else [source.placeholder]
        codes = [program.reshard(edges[values[node][0]]).backward for node in way]
        found = [steps_of(code.steps, code.groups) for code in codes]
        counts = [sum(step.group is not None for step in steps) for steps in found]
        while counts and not counts[0]:
            counts, way = counts[1:], way[1:]
        collectives += sum(counts)
        layout = (
            program.gradient_layout(edges[values[way[0]][0]])
            if way
            else program.layout_of(values[source.placeholder][0])
        )
        num_bytes += local_bytes(source.placeholder.meta["val"], layout, plan)
    return collectives, num_bytes


def local_bytes(value: torch.Tensor, layout: str, plan: Plan) -> int:
    """Of this rank's part."""
    sizes = [size for size, _ in plan.settings.mesh_axes]
    place = torch.unravel_index(torch.tensor(dist.get_rank()), sizes)
    part = torch.empty(value.shape, dtype=value.dtype, device="meta")
    for size, at, axis in zip(sizes, place, layout.split(","), strict=True):
        if axis[0] == "S":
            part = part.chunk(size, int(axis[1:]))[int(at)]
    return part.numel() * part.element_size()


def costs(strategy: Strategy, case: Case) -> Costs:
    module = strategy.module
    run = on_ranks(module, case)

    def collectives(kept: bool) -> int:
        ops.reset_collective_counts()
        (run.kept_loss() if kept else run.loss()).backward()
        return ops.collective_counts().collectives

    def allocated() -> int:
        # Threads of Gloo may hold an operand for a moment after its collective.
        found = []
        for _ in range(5):
            OPS.reset_peak_allocated()
            found.append(int(OPS.peak_allocated()))
            time.sleep(0.01)
        return min(found)

    reduced = collectives(kept=False)
    run.zero_grad()
    OPS.count_allocations(True)
    kept, once = collectives(kept=True), allocated()
    kept_again, twice = collectives(kept=True), allocated()
    OPS.count_allocations(False)
    gradients = [p.grad for p in module.parameters() if isinstance(p.grad, DTensor)]
    held = sum(g.to_local().untyped_storage().nbytes() for g in gradients)
    last = collectives(kept=False)
    missing, expected = put_off(strategy)
    sizes = (expected, held, once, twice)
    bucketed = module.plan.settings.bucket_bytes > 0
    return Costs(reduced, kept, kept_again, last, missing, sizes, bucketed)


@dataclass
class Found:
    """Of the strategies of a job.

    Attributes:
        wrong: what differs from one process.
        reuses: the kinds of tensor reuse that there were.
        costs: by strategy.
    """

    wrong: list[str] = field(default_factory=list)
    reuses: frozenset[str] = frozenset()
    costs: list[Costs] = field(default_factory=list)


def check(job: Job) -> Found:
    """Runs on every rank. Every loop has strategies with and without overlap."""
    found = Found()
    case = job.case()
    for number, strategy in enumerate(strategies(case, job)):
        ours, theirs = on_ranks(strategy.module, case), one_process(case)
        for loop in LOOPS[number // 2 % 2 :: 2]:
            loop(ours)
            loop(theirs)
            wrong = list(differences(strategy.module, theirs.module, job.tolerance))
            found.wrong += [f"{strategy.name}, {loop.__name__}: {wrong}"] if wrong else []
        found.reuses |= strategy.reuses
        found.costs.append(costs(strategy, case))
    return found


def check_all(jobs: list[Job]) -> list[Found]:
    return [check(job) for job in jobs]


class Autocast(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: torch.Tensor = self.model(*args)
        return loss


def counts_of_data_parallel(_: None) -> list[tuple[int, int, int]]:
    return [count_of_data_parallel(autocast) for autocast in (False, True)]


def count_of_data_parallel(autocast: bool) -> tuple[int, int, int]:
    """Collectives of a kept pass, those of its forward alone, and those of a reduced one."""
    case = make("llama", torch.float32)
    model = Autocast(case.model) if autocast else case.model
    captured = capture(model, case.args)
    task = PlanningTask(captured, load_cluster("cpu"))
    (baseline,) = find_baselines(task, dist.get_world_size(), ("data parallel",))
    plan = baseline.plan(len(baseline.points) - 1)
    module = parallelize(model, captured, plan, CPU)
    counts = []
    for backward, reduces in ((True, False), (False, True), (True, True)):
        module.requires_gradient_sync = reduces
        ops.reset_collective_counts()
        loss = module(*case.args)
        if backward:
            loss.backward()
        counts.append(ops.collective_counts().collectives)
    return counts[0], counts[1], counts[2]


class One(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).tanh().square().sum()


def two_with_the_same_parameter(case: Case) -> tuple[ParallelModule, ParallelModule]:
    """In one layout, whose gradients come to it in different ones."""
    seen: dict[str, tuple[str, ParallelModule]] = {}
    for strategy in strategies(case, Job("one", range(60))):
        captured = strategy.module.plan.captured
        assert captured is not None
        space = strategy.space
        program = _C.RankProgram(space, strategy.module.plan.choices.strategy(space), 0)
        value = captured.lowering.values[captured.parameters[0].placeholder][0]
        edge = EdgeIndex.of(strategy.space).first[value]
        gradient, stored = program.gradient_layout(edge), program.layout_of(value)
        if not program.reshard(edge).backward.groups:
            continue
        other, module = seen.setdefault(stored, (gradient, strategy.module))
        if other != gradient:
            strategy.module.weight = module.weight
            return module, strategy.module
    raise AssertionError("no strategies with the same layout of the parameter")


def alternate(_: None) -> list[str]:
    """Passes of two graphs of the same parameters keep for each other."""
    torch.manual_seed(0)
    case = Case(One(), (torch.randn(8, 8, dtype=torch.float64),))
    first, second = (on_ranks(m, case) for m in two_with_the_same_parameter(case))
    theirs = one_process(case)
    for kept in ((first, second, first), (second, second), (first,), ()):
        for run in kept:
            run.kept_loss().backward()
            theirs.loss().backward()
        second.loss().backward()
        theirs.loss().backward()
        wrong = list(differences(first.module, theirs.module, 1e-9))
        if wrong:
            return wrong
    return []
