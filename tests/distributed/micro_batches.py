"""Steps of several micro-batches on ranks, as somebody trains with them."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch import _C
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import load_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.module.variants import VariantOptions
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.pinned import find_pinned
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.ops import collective_counts, reset_collective_counts
from tensoropt_torch.space.search_space import make_space

COUNT = 4
ROWS = 16
SEEDS = range(4)


class Model(nn.Module):
    """A classifier that returns its loss and its logits; some targets are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 6)

    def forward(
        self, x: torch.Tensor, target: torch.Tensor, scale: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.down(F.gelu(self.up(x)))
        return F.cross_entropy(logits, target, ignore_index=0) * scale, logits


def first(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The loss alone."""
    return outputs[0]


def batch(rows: int = ROWS, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 6, (rows,), generator=generator)


@dataclass
class Pair:
    """A model on one process and on all ranks, in micro-batches."""

    plain: Model
    parallel: ParallelModule
    inputs: str

    def share(self, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """What this rank is called with."""
        if self.inputs == "replicated":
            return list(tensors)
        return [t.chunk(dist.get_world_size())[dist.get_rank()] for t in tensors]

    def differences(self) -> list[str]:
        """Parameters whose gradients are not those of one process."""
        own = dict(self.parallel.named_parameters())
        return [
            f"{name}: {error}"
            for name, p in self.plain.named_parameters()
            if (error := distance(whole(own[name].grad), p.grad)) > 1e-10
        ]


def whole(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def distance(a: torch.Tensor | None, b: torch.Tensor | None) -> float:
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    return float((a - b).abs().max())


def pairs(inputs: str) -> list[Pair]:
    """Of random plans."""
    torch.manual_seed(0)
    model = Model().double()
    captured = capture(model, batch())
    task = PlanningTask(
        captured,
        load_cluster("cpu"),
        inputs=inputs,  # type: ignore[arg-type]
        in_micro_batches=(micro_batched(captured, COUNT),),
    )
    *_, (micro, settings) = task.graphs(dist.get_world_size())
    space = make_space(micro, settings)
    found = []
    for seed in SEEDS:
        own = replace(settings, overlap=seed % 2 == 0)
        plan = Plan.of(space, own, micro, space.random_strategy(seed))
        plain = copy.deepcopy(model)
        parallel = parallelize(
            copy.deepcopy(model),
            captured,
            plan,
            torch.device("cpu"),
            options=VariantOptions(find_pinned),
        )
        found.append(Pair(plain, parallel, inputs))
    return found


def use(inputs: str) -> list[str]:
    """What is wrong with any of the ways to use it."""
    wrong = []
    for seed, pair in zip(SEEDS, pairs(inputs), strict=True):
        for check in CHECKS:
            pair.plain.zero_grad()
            pair.parallel.zero_grad()
            wrong += [f"plan {seed}, {check.__name__}: {text}" for text in check(pair)]
    return wrong


def step(pair: Pair) -> list[str]:
    """Two steps whose gradients are added up, one of them scaled, with gradients that are set
    to None between forward and backward of the first."""
    found = []
    for seed, factor in ((0, 1.0), (1, 3.0)):
        tensors = batch(seed=seed)
        expected, logits = pair.plain(*tensors)
        loss, own = pair.parallel(*pair.share(tensors))
        if seed == 0:
            pair.parallel.zero_grad()
        (expected * factor).backward()
        (loss * factor).backward()
        if distance(loss, expected) > 1e-12:
            found.append(f"loss {float(loss)}, not {float(expected)}")
        if distance(own, pair.share((logits,))[0]) > 1e-12:
            found.append(f"logits are off by {distance(own, pair.share((logits,))[0])}")
    return found + pair.differences()


def gradients_by_function(pair: Pair) -> list[str]:
    tensors = batch()
    loss, _ = pair.parallel(*pair.share(tensors))
    own = torch.autograd.grad(loss, list(pair.parallel.parameters()))
    expected, _ = pair.plain(*tensors)
    theirs = torch.autograd.grad(expected, list(pair.plain.parameters()))
    found = [f"{distance(whole(a), b)}" for a, b in zip(own, theirs, strict=True)]
    return [text for text in found if float(text) > 1e-10]


def hooks_run_once(pair: Pair) -> list[str]:
    calls: list[str] = []
    handles = [
        p.register_post_accumulate_grad_hook(lambda _, n=name: calls.append(n))
        for name, p in pair.parallel.named_parameters()
    ]
    loss, _ = pair.parallel(*pair.share(batch()))
    early = list(calls)
    loss.backward()
    for handle in handles:
        handle.remove()
    names = [name for name, _ in pair.parallel.named_parameters()]
    return [] if not early and sorted(calls) == sorted(names) else [f"{early} {calls}"]


def second_backward_is_refused(pair: Pair) -> list[str]:
    loss, _ = pair.parallel(*pair.share(batch()))
    loss.backward(retain_graph=True)
    return refused(lambda: loss.backward(), "second time")


def second_derivatives_are_refused(pair: Pair) -> list[str]:
    loss, _ = pair.parallel(*pair.share(batch()))
    return refused(lambda: loss.backward(create_graph=True), "create_graph=True")


def other_outputs_have_no_gradient(pair: Pair) -> list[str]:
    _, logits = pair.parallel(*pair.share(batch()))
    return refused(lambda: logits.sum().backward(), "only the loss")


def refused(call: object, words: str) -> list[str]:
    assert callable(call)
    try:
        call()
    except TensorOptError as error:
        return [] if words in str(error) else [f"another error: {error}"]
    return ["not refused"]


def evaluation(pair: Pair) -> list[str]:
    found = []
    for rows in (ROWS, 8):
        tensors = batch(rows)
        with torch.no_grad():
            expected, _ = pair.plain(*tensors)
            loss, _ = pair.parallel(*pair.share(tensors))
        if distance(loss, expected) > 1e-12 or loss.requires_grad:
            found.append(f"{rows} rows: {float(loss)}, not {float(expected)}")
    return found


def other_batches(pair: Pair) -> list[str]:
    """They run in micro-batches of no more rows than those of the plan."""
    found = []
    for rows in (8, 32):
        pair.plain.zero_grad()
        pair.parallel.zero_grad()
        tensors = batch(rows)
        expected, _ = pair.plain(*tensors)
        loss, _ = pair.parallel(*pair.share(tensors))
        expected.backward()
        loss.backward()
        found += [f"{rows} rows: {text}" for text in pair.differences()]
    counts = {v.micro_batches for v in pair.parallel.plan.variants}
    return found if {2, 8} <= counts else [*found, f"variants of {counts} micro-batches"]


def gradients_that_wait(pair: Pair) -> list[str]:
    """Passes that do not reduce gradients before one that does, of batches that are one
    micro-batch and of some that are several."""
    found = []
    for sizes in ((ROWS, ROWS), (4, ROWS), (ROWS, 4), (4, 4), (4, ROWS, 4), (ROWS, 4, ROWS)):
        pair.plain.zero_grad()
        pair.parallel.zero_grad()
        for seed, rows in enumerate(sizes):
            tensors = batch(rows, seed)
            pair.plain(*tensors)[0].backward()
            waits = nullcontext() if seed == len(sizes) - 1 else pair.parallel.no_sync()
            with waits:
                pair.parallel(*pair.share(tensors))[0].backward()
        found += [f"passes of {sizes} rows: {text}" for text in pair.differences()]
    return found


class ByRow(nn.Module):
    """A mean over rows whose weights are made in the forward pass, on the device of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        losses = F.cross_entropy(self.linear(x), target, reduction="none")
        none = torch.zeros_like(target, dtype=x.dtype, device=x.device)
        valid = none.masked_fill(target > 1, 1.0) + 0.5
        return (losses * valid).sum() / valid.sum()


def captured_on_meta(_: object) -> list[float]:
    """Loss and largest error of a gradient under a plan that was made for a model on meta."""
    torch.manual_seed(0)
    model = ByRow()
    x, target = batch()
    tensors = x.float(), target
    twin = copy.deepcopy(model).to("meta")
    captured = capture(twin, [t.to("meta") for t in tensors])
    task = PlanningTask(
        captured, load_cluster("cpu"), in_micro_batches=(micro_batched(captured, COUNT),)
    )
    *_, (micro, settings) = task.graphs(dist.get_world_size())
    assert micro.micro_batching is not None and micro.micro_batching.totals is not None
    space = make_space(micro, settings)
    plan = Plan.of(space, settings, micro, space.random_strategy(0))
    parallel = parallelize(copy.deepcopy(model), captured, plan, torch.device("cpu"))
    loss, expected = parallel(*tensors), model(*tensors)
    loss.backward()
    expected.backward()
    own = dict(parallel.named_parameters())
    return [
        distance(loss, expected),
        *(distance(whole(own[name].grad), p.grad) for name, p in model.named_parameters()),
    ]


CHECKS = (
    step,
    gradients_by_function,
    hooks_run_once,
    second_backward_is_refused,
    second_derivatives_are_refused,
    other_outputs_have_no_gradient,
    evaluation,
    other_batches,
    gradients_that_wait,
)


def programs(_: object) -> list[tuple[int, int, int, int]]:
    """Of random plans: programs of reshards that a step should run and has run, values that are
    held and gradients that are summed."""
    torch.manual_seed(0)
    model = Model().double()
    captured = capture(model, batch(), loss_fn=first, targets=())
    part = micro_batched(captured, COUNT)
    task = PlanningTask(captured, load_cluster("cpu"))
    settings = task.settings(dist.get_world_size())
    settings = replace(settings, micro_batches=COUNT, bucket_bytes=0)
    space = make_space(part, settings)
    found = []
    for seed in range(8):
        strategy = space.random_strategy(seed)
        plan = Plan.of(space, settings, part, strategy)
        module = parallelize(model, captured, plan, torch.device("cpu"))
        program = _C.RankProgram(space, strategy, dist.get_rank())
        edges = [program.reshard(edge) for edge in range(len(space.edges()))]
        expected = sum(
            (1 if e.held else COUNT) * bool(e.forward.steps)
            + COUNT * (e.saved == _C.Saved.REMADE and bool(e.forward.steps))
            + (1 if e.summed else COUNT) * bool(e.backward.steps)
            for e in edges
        )
        reset_collective_counts()
        module(*batch()).backward()
        ran = collective_counts().programs
        held, summed = (sum(getattr(e, what) for e in edges) for what in ("held", "summed"))
        found.append((expected, ran, held, summed))
    return found
