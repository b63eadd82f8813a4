"""Every strategy against one process: loss, gradients, updated parameters and
buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import CallContext, capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.values.parts import parts_of
from tests.distributed.batch_norm import batch_norm_in_groups
from tests.distributed.models import Case, make
from tests.distributed.scales import Moved, Movements, moved
from tests.planner.known_strategies import ROLES, allowed_configs

STEPS = 3
CLUSTERS = {"cpu": "cpu", "cuda": "h100-8"}  # whose costs are taken
BUCKETS = (2**22, 0, 4000)  # bytes
# Of the scale of a tensor, see ``scales``. Sums over ranks are taken in another order than in
# one process.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


@dataclass
class Job:
    """Which strategies of which model to check."""

    model: str
    dtype: torch.dtype
    points: int = 40
    randoms: int = 30
    inputs: str = "replicated"
    space: str = "ordered"
    split_spatial: bool = False
    recompute: bool = False
    micro_batches: int = 1
    rows: int | None = None  # of the batch, if not those of the model's case
    known: bool = False  # also the ends of every known strategy, on 4 devices
    baselines: bool = False  # also the ends of every baseline
    reduce_dtype: str = "parameter"
    tolerance: float = 0  # where it computes in another dtype
    compile: bool | str = False
    device: str = "cpu"  # or "cuda": the current one, which all ranks may share
    batch_norm_groups: int = 1


@dataclass
class Trace:
    """What a training run leaves: by name, on one process."""

    losses: list[float]
    gradients: dict[str, torch.Tensor]  # of the first step
    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    movements: Movements = field(default_factory=dict)  # by kind and name, see ``scales``


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    # A larger eps than the default: gradients that are zero but for rounding
    # (the key bias of attention) must not become steps of full size.
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return tensor.detach().clone()
    if tensor.is_cuda and dist.get_world_size() > 1:
        return of_all_parts(tensor)
    return tensor.full_tensor().detach().clone()


def of_all_parts(tensor: DTensor) -> torch.Tensor:
    """As ``full_tensor``, whose collective takes memory of GPUs for that of the CPU where the
    processes speak over Gloo, and ends them."""
    parts = parts_of(tensor.shape, tensor.device_mesh, tensor.placements)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (parts, tensor.to_local().detach().cpu()))
    result = torch.empty(tensor.shape, dtype=tensor.dtype)
    for places, values in everyone:
        pieces = [values]
        if len(places) > 1:  # parts of blocks
            (dim,) = {p.dim for p in tensor.placements if isinstance(p, _StridedShard)}
            pieces = values.split([place[dim].stop - place[dim].start for place in places], dim)
        for place, piece in zip(places, pieces, strict=True):
            result[place] = piece
    return result.to(tensor.device)


def train(model: nn.Module, step: object) -> Trace:
    optimizer = optimizer_of(model)
    losses, gradients = [], {}
    assert callable(step)
    for index in range(STEPS):
        loss = step()
        loss.backward()
        losses.append(float(loss.detach()))
        if index == 0:
            gradients = {
                name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None
            }
        optimizer.step()
        optimizer.zero_grad()
    parameters = {name: whole(p) for name, p in model.named_parameters()}
    buffers = {name: whole(b) for name, b in model.named_buffers()}
    return Trace(losses, gradients, parameters, buffers)


def train_alone(
    model: nn.Module,
    loss_of: Callable[[nn.Module], torch.Tensor],
    tolerance: float,
    seed: int | None = None,
) -> Trace:
    """What training leaves in one process, with how far rounding moves it. The model stays as it
    is; ``seed`` is set before each of the runs."""

    def trained(module: nn.Module) -> dict[str, torch.Tensor]:
        if seed is not None:
            torch.manual_seed(seed)
        traces.append(train(module, lambda: loss_of(module)))
        return _by_name(traces[-1])

    traces: list[Trace] = []
    one = moved(trained, model, tolerance)
    return replace(traces[0], movements=one.movements)


def _by_name(trace: Trace) -> dict[str, torch.Tensor]:
    """Gradients, parameters and buffers by kind and name."""
    return {
        f"{kind[:-1]} of '{name}'": tensor
        for kind in ("gradients", "parameters", "buffers")
        for name, tensor in getattr(trace, kind).items()
    }


def differences(
    got: Trace, expected: Trace, tolerance: float, rounding: float = 0.0
) -> Iterator[str]:
    """What is further off than rounding explains, of each tensor on its own scale. Where
    ``train_alone`` has not found how far rounding moves a tensor, it is by ``rounding``."""
    for index, (a, b) in enumerate(zip(got.losses, expected.losses, strict=True)):
        if not abs(a - b) <= tolerance * abs(b):
            yield f"loss of step {index}: {a} instead of {b}"
    values = _by_name(expected)
    movements = {name: expected.movements.get(name, rounding) for name in values}
    yield from Moved(values, movements, tolerance).differences(_by_name(got))


def labels(plan: Plan, case_name: str) -> str:
    """The configs of all nodes that have a choice, to name the operator."""
    assert plan.captured is not None
    rows = make_space(plan.captured, plan.settings).nodes()
    chosen = zip(rows, plan.choices.labels, strict=True)
    texts = [f"{row.name}={label}" for row, label in chosen if len(row.configs) > 1]
    return f"{case_name}: " + "; ".join(texts)


def plans(case: Case, job: Job) -> Iterator[tuple[str, Plan]]:
    context = CallContext(batch_norm_groups=job.batch_norm_groups)
    captured = capture(case.model, case.args, **case.keywords, context=context)
    task = PlanningTask(
        captured,
        load_cluster(CLUSTERS[job.device]),
        inputs=job.inputs,  # type: ignore[arg-type]
        space=job.space,
        split_spatial=job.split_spatial,
        recompute=job.recompute,
        reduce_dtype=job.reduce_dtype,  # type: ignore[arg-type]
        search=SearchSettings(epsilon=1e-3),
    )
    if job.micro_batches > 1:
        task = replace(task, in_micro_batches=(micro_batched(captured, job.micro_batches),))
    frontier = find_frontier(task, dist.get_world_size())
    for point in frontier.thinned(job.points):
        yield f"point {point.index} of {len(frontier)}", point.plan
    *_, (captured, settings) = task.graphs(dist.get_world_size())
    space = make_space(captured, settings)
    for name, roles in ROLES.items() if job.known else ():
        allowed = allowed_configs(space, roles)
        result = SearchSettings(epsilon=1e-3).run(space, allowed=allowed)
        for point in {0, len(result.points) - 1}:
            strategy = result.unroll(point)
            yield f"{name}, point {point}", Plan.of(space, settings, captured, strategy)
    for baseline in find_baselines(task, dist.get_world_size()) if job.baselines else ():
        for point in sorted({0, len(baseline.points) - 1}):
            yield f"{baseline.name}, point {point}", baseline.plan(point)
    for seed in range(job.randoms):
        strategy = space.random_strategy(seed)
        own = replace(settings, overlap=seed % 2 == 0, bucket_bytes=BUCKETS[seed % len(BUCKETS)])
        yield f"random strategy, seed {seed}", Plan.of(space, own, captured, strategy)


def share(tensors: tuple[torch.Tensor, ...], inputs: str) -> list[torch.Tensor]:
    if inputs == "replicated":
        return list(tensors)
    return [t.chunk(dist.get_world_size())[dist.get_rank()] for t in tensors]


def check(job: Job) -> tuple[int, list[str]]:
    """Runs on every rank: the number of strategies checked, and what was wrong."""
    device = torch.empty(0, device=job.device).device
    case = make(job.model, job.dtype, job.rows).to(device)
    tolerance = job.tolerance or TOLERANCE[job.dtype]
    with batch_norm_in_groups(job.batch_norm_groups):
        expected = train_alone(case.model, lambda m: replace(case, model=m).loss(), tolerance)
    context: RankContext | None = None
    wrong: list[str] = []
    count = 0
    for name, plan in plans(case, job):
        sizes = [size for size, _ in plan.settings.mesh_axes]
        context = context or RankContext.make(sizes, device)
        assert plan.captured is not None
        module = parallelize(case.model, plan.captured, plan, device, context, compile=job.compile)
        inputs = share((*case.args, *case.targets), job.inputs)
        got = train(module, lambda module=module, inputs=inputs: module(*inputs))
        found = list(differences(got, expected, tolerance))
        if found:
            wrong.append(f"{name}: {found} under {labels(plan, job.model)}")
        count += 1
    return count, wrong
