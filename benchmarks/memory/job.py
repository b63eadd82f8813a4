"""One process of a job: trains under random strategies and says how much memory
its tensors took. Started by ``measure.py`` with ``liballocations.so`` preloaded.

    python -m benchmarks.memory.job '{"model": "mlp", "seeds": [0, 1], ...}'
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.memory.models import make
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.stage_calls import StageVariantOptions
from tensoropt_torch.module.staged import parallelize_stages
from tensoropt_torch.plan import Plan, Settings, StagedPlan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.stage_schedules import ScheduleName
from tensoropt_torch.runtime.digests import digest_of
from tensoropt_torch.simulate import StepSettings
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.staging import StageOptions, plan_stages
from tensoropt_torch.staging.pinned import find_pinned_stages

STEPS = 6  # the first one, which makes the optimizer's state, is not measured
TENSORS, ALL = 0, 1  # as allocations.c counts them
DEVICE = torch.device("cpu")


@dataclass(frozen=True)
class Job:
    """What to measure: random strategies of a model by their seeds."""

    model: str
    num_devices: int
    seeds: tuple[int, ...]
    optimizer: str = "adamw"
    foreach: bool = False
    recompute: bool = False
    micro_batches: int = 1
    stages: int = 1
    schedule: ScheduleName = "1f1b"
    chunks: int = 1

    def plan(self, captured: CapturedModel, seed: int) -> Plan | StagedPlan:
        """The same strategy in every process."""
        if self.stages > 1:
            return random_stages(captured, self, seed)
        return random_plan(captured, self.num_devices, seed, self.recompute, self.micro_batches)


@dataclass(frozen=True)
class Peak:
    """Most bytes at one moment of a step, on one rank, above what was there before.

    ``tensor_bytes`` is of the step that had the least: Gloo's thread may hold the
    operands of a collective for a moment after it is over, and has a buffer at some time
    while a gather is under way, which adds to some steps and not to others.
    ``highest_bytes`` is of the step that had the most.
    """

    seed: int
    tensor_bytes: int
    highest_bytes: int
    all_bytes: int  # with what is not allocated by PyTorch, such as Gloo's buffers


def random_plan(
    captured: CapturedModel,
    num_devices: int,
    seed: int,
    recompute: bool = False,
    micro_batches: int = 1,
) -> Plan:
    """The same strategy in every process."""
    task = PlanningTask(captured, load_cluster("cpu"), recompute=recompute)
    settings = replace(task.settings(num_devices), micro_batches=micro_batches)
    captured = micro_batched(captured, micro_batches)
    space = make_space(captured, settings)
    settings = replace(settings, overlap=seed % 2 == 0)
    return Plan.of(space, settings, captured, space.random_strategy(seed))


def random_stages(captured: CapturedModel, job: Job, seed: int) -> StagedPlan:
    """A plan in stages of about equal work, each with a strategy of its own."""
    task = PlanningTask(captured, load_cluster("cpu"), recompute=job.recompute)
    options = StageOptions(job.stages, job.micro_batches, job.schedule, job.chunks)
    seeds = itertools.count(1000 * seed)

    def find(space: Any, settings: Settings, part: CapturedModel, held: float) -> Plan:
        return Plan.of(space, settings, part, space.random_strategy(next(seeds)))

    return plan_stages(task, options, job.num_devices, find=find)


def step_settings(job: Job, rank: int) -> StepSettings:
    """The optimizer of the job, for the simulation and for the real run."""
    named = StepSettings(optimizer=job.optimizer, device="cuda" if job.foreach else "cpu")
    return StepSettings(optimizer=named.make_optimizer, rank=rank)


class Allocations:
    """The counters of ``liballocations.so``."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        for name in ("allocations_current", "allocations_peak"):
            getattr(self._library, name).restype = ctypes.c_long

    def current(self, kind: int) -> int:
        """Bytes allocated now."""
        return int(self._library.allocations_current(kind))

    def peak(self, kind: int) -> int:
        """The most since ``reset``."""
        return int(self._library.allocations_peak(kind))

    def reset(self) -> None:
        """Peaks start from what is allocated now."""
        self._library.allocations_reset()


class _Parallel:
    """Makes the modules of a model under several plans; those without stages share their
    process groups."""

    def __init__(self, model: nn.Module, captured: CapturedModel) -> None:
        self._model = model
        self._captured = captured
        self._context: RankContext | None = None

    def prepare(self, plan: Plan | StagedPlan) -> None:
        """What modules share is made."""
        if isinstance(plan, Plan) and self._context is None:
            sizes = [size for size, _ in plan.settings.mesh_axes]
            self._context = RankContext.make(sizes, DEVICE)

    def module(self, plan: Plan | StagedPlan) -> nn.Module:
        """The module of this rank."""
        if isinstance(plan, Plan):
            return parallelize(self._model, self._captured, plan, DEVICE, self._context)
        given: Any = {"options": StageVariantOptions(find_pinned_stages), "check_capture": False}
        return parallelize_stages(self._model, self._captured, plan, DEVICE, **given)


def measure(job: Job) -> list[Peak]:
    """On every rank of a job with Gloo."""
    model, args = make(job.model)
    captured = capture(model, args)
    shapes = [(a.shape, a.dtype) for a in args]
    del args
    parallel = _Parallel(model, captured)
    digest_of(torch.ones(1))  # makes what a process keeps as long as it runs
    allocations = Allocations()
    peaks = []
    for seed in job.seeds:
        plan = job.plan(captured, seed)
        parallel.prepare(plan)
        gc.collect()
        before = [allocations.current(kind) for kind in (TENSORS, ALL)]
        inputs = [torch.ones(shape, dtype=dtype) for shape, dtype in shapes]
        module = parallel.module(plan)
        optimizer = step_settings(job, 0).make_optimizer(list(module.parameters()))
        levels = []
        for _ in range(STEPS):
            gc.collect()
            dist.barrier()
            allocations.reset()
            loss = module(*inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            levels.append([allocations.peak(kind) - before[kind] for kind in (TENSORS, ALL)])
        tensors, everything = zip(*levels[1:], strict=True)
        peaks.append(Peak(seed, min(tensors), max(tensors), min(everything)))
        del module, optimizer, loss, inputs
    return peaks


def main() -> None:
    """Prints the peaks as JSON, on the last line."""
    record = json.loads(sys.argv[1])
    job = Job(**{**record, "seeds": tuple(record["seeds"])})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    peaks = measure(job)
    dist.destroy_process_group()
    print(json.dumps([asdict(peak) for peak in peaks]))


if __name__ == "__main__":
    main()
