"""What it costs that ranks compare inputs at every step, and what else is looked at in each.

``benchmarks/overhead.py --only checks`` runs it on 2 processes, which train the small GPT under
data parallelism, with inputs that both get whole. Each part is timed by itself, inside of real
steps, since a step varies by more than it takes; and steps without the part have their turn, which
shows what no timer inside sees.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.models.small import MODELS
from benchmarks.ranks import ratio_figures
from tensoropt_torch import ParallelModule
from tensoropt_torch.calls.attribute_watch import UNCHANGED
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.module.variants import VariantOptions
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.pinned import find_pinned
from tensoropt_torch.runtime.whereabouts import board
from tensoropt_torch.tasks import Example, PlanningOptions, task_of

TURNS, WARM_UPS = 24, 3


@dataclass(frozen=True)
class Part:
    """A method of an object that a step calls, and what is called in its place without it."""

    owner: Callable[[ParallelModule], Any]
    method: str
    without: Callable[..., Any]


# By what it is called in the table.
PARTS = {
    "inputs compared": Part(lambda m: programs_of(m).variants, "_number_of_inputs", lambda call: 0),
    "attributes watched": Part(
        lambda m: programs_of(m).variants._maker.attributes, "look", lambda: UNCHANGED
    ),
    "places noted": Part(lambda m: board(), "write", lambda *state: None),
}


class Timed:
    """In place of a method: adds up what it takes."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return self._method(*arguments)
        finally:
            self.seconds += time.perf_counter() - start


def parallel(name: str) -> tuple[ParallelModule, tuple[torch.Tensor, ...]]:
    """Under data parallelism of inputs that all ranks get whole, with variants, as programs
    make it."""
    torch.manual_seed(0)
    model, batch = MODELS[name].make()
    task = task_of(Example(model, batch), PlanningOptions(optimizer="adamw", measure=False))
    (baseline,) = find_baselines(task, dist.get_world_size(), ("data parallel",))
    plan = baseline.plan(len(baseline.points) - 1)
    assert plan.captured is not None
    device = torch.device("cpu")
    module = parallelize(model, plan.captured, plan, device, options=VariantOptions(find_pinned))
    return module, batch


def measure(name: str) -> dict[str, Any]:
    """For each part of a step: its seconds, its share of the step that it is in, and steps with
    it to the next ones without."""
    module, batch = parallel(name)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def step() -> float:
        dist.barrier()
        start = time.perf_counter()
        module(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    for _ in range(WARM_UPS):
        step()
    figures = {label: _figures(step, part, part.owner(module)) for label, part in PARTS.items()}
    return {"step_s": statistics.median(step() for _ in range(5)), "parts": figures}


def _figures(step: Callable[[], float], part: Part, owner: Any) -> dict[str, Any]:
    """Steps with and without, in turn."""
    seconds, shares, ratios = [], [], []
    method = getattr(owner, part.method)
    for _ in range(TURNS):
        timed = Timed(method)
        setattr(owner, part.method, timed)
        step_s = step()
        setattr(owner, part.method, part.without)
        without_s = step()
        seconds.append(timed.seconds)
        shares.append(timed.seconds / step_s)
        ratios.append(step_s / without_s)
    delattr(owner, part.method)  # the class has it
    return {
        "median_s": statistics.median(seconds),
        "median_share": statistics.median(shares),
        "most_share": max(shares),
        **ratio_figures(ratios),
    }
