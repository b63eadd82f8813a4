"""Passes of several micro-batches whose gradients wait, beside one process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import executor, parallelize
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.module.parallelize import RankContext
from tensoropt_torch.module.variants import VariantOptions
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.pinned import find_pinned
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.schedule import (
    AddKept,
    Backward,
    Deliver,
    Forward,
    Hold,
    Join,
    ReduceGradients,
    Release,
    Schedule,
)
from tensoropt_torch.runtime import ops
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.steps.clipping import clip_grad_norm_
from tests.distributed import accumulation_loops
from tests.distributed.accumulation import CPU, Job, differences, on_ranks, one_process
from tests.distributed.micro_batches import ROWS, Pair, batch, distance, pairs, whole
from tests.distributed.models import Case, make

# Not what refuses a second backward.
LOOPS = [
    loop
    for loop in accumulation_loops.LOOPS
    if loop is not accumulation_loops.twice_through_one_graph
]
COUNT = 2


def modules(case: Case, job: Job) -> Iterator[tuple[str, ParallelModule]]:
    """Random strategies in micro-batches, every other one with overlap, two of four in buckets."""
    captured = capture(case.model, case.args, **case.keywords)
    part = micro_batched(captured, COUNT)
    settings = PlanningTask(captured, load_cluster("cpu")).settings(dist.get_world_size())
    settings = replace(settings, micro_batches=COUNT)
    context = RankContext.make([size for size, _ in settings.mesh_axes], CPU)
    for seed in job.seeds:
        bucket_bytes = 0 if seed % 4 < 2 else settings.bucket_bytes
        own = replace(settings, overlap=seed % 2 == 0, bucket_bytes=bucket_bytes)
        space = make_space(part, own)
        plan = Plan.of(space, own, part, space.random_strategy(seed))
        yield f"random strategy, seed {seed}", parallelize(case.model, captured, plan, CPU, context)


def loops(job: Job) -> list[str]:
    """What is wrong with any loop, under any of the strategies."""
    case, found = job.case(), []
    for name, module in modules(case, job):
        ours, theirs = on_ranks(module, case), one_process(case)
        for loop in LOOPS:
            loop(ours)
            loop(theirs)
            wrong = list(differences(module, theirs.module, job.tolerance))
            found += [f"{name}, {loop.__name__}: {wrong}"] if wrong else []
    return found


@dataclass(frozen=True)
class Pass:
    """One of a sequence: of ``rows``, with what is done to ``.grad`` before, and after."""

    rows: int
    waits: bool
    before: str
    clips: str

    @staticmethod
    def drawn(numbers: random.Random) -> Pass:
        return Pass(
            numbers.choice((4, ROWS, 2 * ROWS)),  # one micro-batch, those of the plan, and more
            numbers.random() < 0.6,
            numbers.choice(("nothing", "nothing", "set to None", "set to zero")),
            numbers.choice(("no", "no", "by one collective", "by torch")),
        )

    def run(self, module: nn.Module, tensors: Any) -> torch.Tensor:
        """The loss, detached."""
        if self.before != "nothing":
            module.zero_grad(set_to_none=self.before == "set to None")
        waits = self.waits and isinstance(module, ParallelModule)
        with module.no_sync() if waits else nullcontext():  # type: ignore[operator]
            loss: torch.Tensor = module(*tensors)[0]
        (loss * 3).backward()
        if self.clips == "by torch":
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        elif self.clips != "no":
            clip_grad_norm_(module.parameters(), 0.5)
        return loss.detach()


def random_passes(given: tuple[str, int]) -> list[str]:
    """What is wrong after any pass of random sequences: losses, and ``.grad``."""
    inputs, seed = given
    found: list[str] = []
    for number, pair in enumerate(pairs(inputs)):
        numbers = random.Random(seed + number)
        passes = [Pass.drawn(numbers) for _ in range(12)]
        for index, one in enumerate(passes):
            tensors = batch(one.rows, index)
            expected = one.run(pair.plain, tensors)
            loss = one.run(pair.parallel, pair.share(tensors))
            wrong = pair.differences()
            if distance(loss, expected) > 1e-12:
                wrong.append(f"loss {float(loss)} instead of {float(expected)}")
            if wrong:
                found.append(f"plan {number}, seed {seed + number}, {passes[: index + 1]}: {wrong}")
                break
    return found


def counts(_: None) -> tuple[int, int, int]:
    """Collectives of a data-parallel pass in micro-batches: kept, of forward alone, reduced."""
    case = make("llama", torch.float32)
    captured = capture(case.model, case.args)
    task = PlanningTask(
        captured, load_cluster("cpu"), in_micro_batches=(micro_batched(captured, COUNT),)
    )
    (baseline,) = find_baselines(
        replace(task, captured=micro_batched(captured, COUNT)),
        dist.get_world_size(),
        ("data parallel",),
    )
    module = parallelize(case.model, captured, baseline.plan(len(baseline.points) - 1), CPU)
    found = []
    for backward, reduces in ((True, False), (False, True), (True, True)):
        module.requires_gradient_sync = reduces
        ops.reset_collective_counts()
        with nullcontext() if backward else torch.no_grad():
            loss = module(*case.args)
        if backward:
            loss.backward()
        found.append(ops.collective_counts().collectives)
    return found[0], found[1], found[2]


# --- Other schedules --------------------------------------------------------------------------


def backwards_last(count: int, reduces: bool = True, _: bool = True) -> Schedule:
    """All forwards, from the last to the first, before all backwards."""
    order = [*range(count)]
    backwards = [Backward(n, reduces and n == order[-1]) for n in order]
    late = (ReduceGradients(),) if reduces else ()
    forwards = map(Forward, reversed(order))
    return Schedule(
        (Hold(), *forwards, *backwards, Release(), *late, Join()),
        (AddKept(), Deliver(keeps=not reduces)),
    )


def interleaved(count: int, reduces: bool = True, _: bool = True) -> Schedule:
    """One forward ahead, as stages of a pipeline have it."""
    actions: list[Any] = [Forward(0)]
    for number in range(count):
        actions += [Forward(number + 1)] if number + 1 < count else []
        actions.append(Backward(number, reduces and number == count - 1))
    late = (ReduceGradients(),) if reduces else ()
    return Schedule(
        (Hold(), *actions, Release(), *late, Join()), (AddKept(), Deliver(keeps=not reduces))
    )


def other_orders(inputs: str) -> list[str]:
    """What is wrong under schedules of another order."""
    found = []
    before = executor.in_micro_batches
    for made in (backwards_last, interleaved):
        executor.in_micro_batches = made  # type: ignore[assignment]
        try:
            for number, pair in enumerate(pairs(inputs)):
                wrong = passes_of(pair)
                found += [f"plan {number}, {made.__name__}: {text}" for text in wrong]
        finally:
            executor.in_micro_batches = before
    return found


def passes_of(pair: Pair) -> list[str]:
    """Two that wait and one that reduces."""
    found = []
    for seed in range(3):
        one = Pass(ROWS, seed < 2, "nothing", "no")
        tensors = batch(seed=seed)
        expected, logits = pair.plain(*tensors)
        loss = one.run(pair.parallel, pair.share(tensors))
        (expected * 3).backward()
        with nullcontext() if seed < 2 else torch.no_grad():
            own = pair.parallel(*pair.share(tensors))[1]
        found += [f"pass {seed}: {text}" for text in pair.differences()]
        if distance(loss, expected) > 1e-12 or distance(own, pair.share((logits,))[0]) > 1e-12:
            found.append(f"outputs of pass {seed} are off")
    return found


# --- Numbers, and writes ----------------------------------------------------------------------


class Scheduled(nn.Module):
    """Its loss depends on a number that the program changes, and on one that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)
        self.decay = 1.0

    def forward(self, x: torch.Tensor, target: torch.Tensor, scale: float) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.linear(x), target)
        return loss * scale + self.decay * (self.linear(x) ** 2).mean()


def made(model: nn.Module, arguments: Any) -> ParallelModule:
    """Parallel, in micro-batches, under a random plan."""
    captured = capture(model, arguments)
    part = micro_batched(captured, COUNT)
    task = PlanningTask(captured, load_cluster("cpu"), in_micro_batches=(part,))
    *_, (micro, settings) = task.graphs(dist.get_world_size())
    space = make_space(micro, settings)
    plan = Plan.of(space, settings, micro, space.random_strategy(1))
    options = VariantOptions(find_pinned)
    return parallelize(model, captured, plan, CPU, options=options)


def numbers(_: None) -> list[str]:
    """What is wrong where numbers change from step to step."""
    torch.manual_seed(0)
    plain, model = Scheduled().double(), Scheduled().double()
    model.load_state_dict(plain.state_dict())
    parallel = made(model, (*batch(), 1.0))
    pair = Pair(plain, parallel, "replicated")  # type: ignore[arg-type]
    found = []
    for step, (decay, scale) in enumerate([(1.0, 1.0), (0.5, 1.0), (0.25, 2.0), (0.125, 3.0)]):
        for module in (plain, parallel):
            module.zero_grad()
            module.decay = decay
        losses = [module(*batch(seed=step), scale) for module in (plain, parallel)]
        for loss in losses:
            loss.backward()
        found += [f"step {step}: {text}" for text in pair.differences()]
        if distance(*losses) > 1e-12:
            found.append(f"step {step}: loss {float(losses[1])} instead of {float(losses[0])}")
    return found


def writes(_: None) -> list[str]:
    """What is wrong where programs write parameters between forward and backward, and gradients
    and views of them after it."""
    found = []
    for number, pair in enumerate(pairs("replicated")):
        for way in WRITES:
            pair.plain.zero_grad()
            pair.parallel.zero_grad()
            way(pair)
            found += [f"plan {number}, {way.__name__}: {t}" for t in pair.differences()]
            with torch.no_grad():  # as they were
                own = dict(pair.parallel.named_parameters())
                for name, parameter in pair.plain.named_parameters():
                    error = distance(whole(own[name]), parameter)
                    found += [f"plan {number}: '{name}' is off"] if error > 1e-12 else []
    return found


def weights_between(pair: Pair) -> None:
    """One process refuses it: a gradient needs the weight. These are those of forward."""
    tensors = batch()
    loss = pair.parallel(*pair.share(tensors))[0]
    pair.plain(*tensors)[0].backward()
    for module in (pair.plain, pair.parallel):
        with torch.no_grad():
            module.up.weight.mul_(0.5)
            module.down.weight.mul_(0.5)
    loss.backward()


def biases_between(pair: Pair) -> None:
    tensors = batch()
    for module, given in ((pair.plain, tensors), (pair.parallel, pair.share(tensors))):
        loss = module(*given)[0]
        with torch.no_grad():
            module.down.bias.add_(1.0)
        loss.backward()


def views_of_gradients(pair: Pair) -> None:
    """Between passes, of which the first waits or not."""
    tensors = batch()
    for module, given in ((pair.plain, tensors), (pair.parallel, pair.share(tensors))):
        module(*given)[0].backward()
        module.up.weight.grad.view(-1).mul_(2.0)
        torch._foreach_mul_([p.grad for p in module.parameters()], 0.5)
        module(*given)[0].backward()


def kept_gradients_written(pair: Pair) -> None:
    tensors = batch()
    for module, given in ((pair.plain, tensors), (pair.parallel, pair.share(tensors))):
        waits: Callable[[], Any] = getattr(module, "no_sync", nullcontext)
        with waits():
            module(*given)[0].backward()
        torch._foreach_mul_([p.grad for p in module.parameters()], 0.5)
        module(*given)[0].backward()


WRITES = (weights_between, biases_between, views_of_gradients, kept_gradients_written)
