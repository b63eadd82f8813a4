"""Training, evaluation on other batches, and training on, against one process doing it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from benchmarks.coverage.zoo import MODELS
from benchmarks.coverage.zoo.example import Example
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.variants import VariantOptions
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.pinned import find_pinned
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

CPU = torch.device("cpu")
# Of the dtype of the loss: some models compute it, and so all gradients, in float32.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-5}
IN_FLOAT32 = {"t5": 1e-6}  # models that normalise in float32
STEPS = 5


@dataclass
class Job:
    """A model, and how many strategies of it are run: ends and middle of the frontier, and
    random ones."""

    model: str
    points: int = 3
    randoms: int = 3


class Dropped(nn.Module):
    """Dropout and normalisation over the batch, which differ in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.drop_channels, self.drop = nn.Dropout2d(0.2), nn.Dropout(0.3)
        self.body, self.norm = nn.Linear(8 * 16, 24), nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, 8, 8) -> (b, 8)."""
        x = nn.functional.max_pool2d(self.drop_channels(self.stem(x)), 2).flatten(1)
        return self.head(self.drop(self.norm(self.body(x)).relu()))


def dropped() -> Example:
    """Images of 8 classes."""
    x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 8, (8,))
    return Example(Dropped(), (x,), loss_fn=nn.functional.cross_entropy, targets=(y,))


def make_example(name: str) -> Example:
    """In double precision, but for models that refuse it; the same on all ranks."""
    torch.manual_seed(0)
    example = dropped() if name == "dropped" else MODELS[name]()
    cast = pytree.tree_map_only(
        torch.Tensor,
        lambda t: t.to(example.precision) if t.is_floating_point() else t,
        (example.args, dict(example.kwargs), example.targets),
    )
    model = example.model.to(example.precision)
    return replace(example, model=model, args=cast[0], kwargs=cast[1], targets=cast[2])


def cut(example: Example, rows: int, length: int | None = None) -> Example:
    """The first rows of the batch, and the first tokens of each."""

    def part(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor[:rows]
        is_text = tensor.dim() == 2 and length is not None
        return tensor[:, :length].contiguous() if is_text else tensor

    args, kwargs, targets = pytree.tree_map_only(
        torch.Tensor, part, (example.args, dict(example.kwargs), example.targets)
    )
    return replace(example, args=args, kwargs=kwargs, targets=targets)


def other_batches(example: Example) -> Iterator[tuple[str, Example]]:
    """Another batch size, a part that does not divide, and another length."""
    yield "half the batch", cut(example, 4)
    yield "a partial batch", cut(example, 3)
    if (example.loss_fn is None and example.args == ()) or _is_text(example):
        yield "another length", cut(example, 4, 6)


def _is_text(example: Example) -> bool:
    leaves = pytree.tree_leaves((example.args, dict(example.kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return example.loss_fn is None and all(t.dim() == 2 for t in tensors)


def story(module: nn.Module, example: Example, parallel: bool) -> Iterator[tuple[str, Any]]:
    """Trains, evaluates, trains on; yields everything that can be seen, with its name."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-4)

    def loss_of(case: Example) -> torch.Tensor:
        if parallel or case.loss_fn is None:
            found = module(*case.args, *case.targets, **case.kwargs)
        else:
            found = case.loss_fn(module(*case.args, **case.kwargs), *case.targets)
        return found if isinstance(found, torch.Tensor) else found["loss"]

    def train(case: Example, step: int) -> Iterator[tuple[str, Any]]:
        torch.manual_seed(step)
        loss = loss_of(case)
        loss.backward()
        yield f"loss of step {step}", loss
        optimizer.step()
        optimizer.zero_grad()

    for step in range(STEPS):
        yield from train(example, step)
    yield from _state("after training", module)
    module.eval()
    with torch.no_grad():
        for name, case in other_batches(example):
            for place, leaf in enumerate(pytree.tree_leaves(module(*case.args, **case.kwargs))):
                yield f"output {place} for {name}", leaf
            yield f"loss for {name}", loss_of(case)
    yield from _state("after evaluation", module)
    module.train()
    for step in range(STEPS, STEPS + 2):
        yield from train(example if step % 2 else cut(example, 4), step)
    yield from _state("at the end", module)


def _state(when: str, module: nn.Module) -> Iterator[tuple[str, Any]]:
    for kind, tensors in (
        ("parameter", module.named_parameters()),
        ("buffer", module.named_buffers()),
    ):
        for name, tensor in tensors:
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            yield f"{kind} {name} {when}", whole.detach().clone()


def differences(
    found: Sequence[tuple[str, Any]], expected: Sequence[tuple[str, Any]], tolerance: float
) -> Iterator[str]:
    if [name for name, _ in found] != [name for name, _ in expected]:
        yield f"other things are seen: {[n for n, _ in found]} for {[n for n, _ in expected]}"
        return
    for (name, ours), (_, theirs) in zip(found, expected, strict=True):
        if not isinstance(theirs, torch.Tensor):
            if ours != theirs:
                yield f"{name} is {ours} instead of {theirs}"
            continue
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            yield f"{name} is {ours.dtype} {tuple(ours.shape)} for {tuple(theirs.shape)}"
        elif theirs.numel():
            error = float((ours.double() - theirs.double()).abs().max())
            if not error <= tolerance * max(float(theirs.abs().max()), 1e-1):
                yield f"{name} is off by {error}"


def changed_buffers(found: Sequence[tuple[str, Any]]) -> list[str]:
    """Buffers of which evaluation changed a bit."""
    seen = {name: value for name, value in found if name.startswith("buffer ")}
    names = [name.removesuffix(" after training") for name in seen if "after training" in name]
    return [
        name
        for name in names
        if not torch.equal(seen[f"{name} after training"], seen[f"{name} after evaluation"])
    ]


def plans(example: Example, job: Job) -> Iterator[tuple[str, Plan]]:
    captured = capture(example.model, example.args, **example.keywords)
    cluster = load_cluster("cpu")
    task = PlanningTask(captured, cluster)
    world = dist.get_world_size()
    frontier = find_frontier(task, world)
    for point in frontier.thinned(job.points):
        yield f"point {point.index} of {len(frontier)}", point.plan
    settings = task.settings(world)
    space = make_space(captured, settings)
    for seed in range(job.randoms):
        with_overlap = replace(settings, overlap=seed % 2 == 0)
        yield (
            f"seed {seed}",
            Plan.of(space, with_overlap, captured, space.random_strategy(seed)),
        )


def check(job: Job) -> tuple[int, list[str]]:
    """Runs on every rank: the number of strategies, and what was wrong."""
    warnings.filterwarnings("ignore", "operator '")
    example = make_example(job.model)
    reference = copy.deepcopy(example.model)
    expected = list(story(reference, example, parallel=False))
    context: RankContext | None = None
    wrong: list[str] = []
    count = 0
    for name, plan in plans(example, job):
        context = context or RankContext.make([size for size, _ in plan.settings.mesh_axes], CPU)
        assert plan.captured is not None
        module = parallelize(
            copy.deepcopy(example.model),
            plan.captured,
            plan,
            CPU,
            context,
            options=VariantOptions(find_pinned),
            one_process_random=True,
        )
        found = list(story(module, example, parallel=True))
        tolerance = IN_FLOAT32.get(job.model, TOLERANCE[expected[0][1].dtype])
        problems = list(differences(found, expected, tolerance))
        problems += [f"{buffer} changed in evaluation" for buffer in changed_buffers(found)]
        if problems:
            wrong.append(f"{name}: {problems[:4]}")
        count += 1
    return count, wrong
