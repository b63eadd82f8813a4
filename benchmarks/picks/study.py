"""Rows of one model: what ``mini_time`` picks by default, in its parts.

All seconds are those of the processor, of all threads together, so that what runs beside does not
lengthen them: capture and simulation have one thread, the search has several.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from typing import Any

from benchmarks.machine import machine
from benchmarks.picks.models import MODELS, example_of
from tensoropt_torch import TensorOptError, load_cluster
from tensoropt_torch.batches import batch_rows, doubled, micro_batched
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.simulate import PeakTooLargeError, pick_within, simulate_step, step_of


def rows_of(name: str, presets: list[str]) -> list[dict[str, Any]]:
    """The rows of one model."""
    model, found = MODELS[name], []
    start = time.process_time()
    example = example_of(name)
    built = time.process_time()
    capture_s = time.process_time()
    captured = example.capture()
    capture_s = time.process_time() - capture_s
    print(f"{name}: built in {built - start:.1f} s, captured in {capture_s:.1f} s", flush=True)
    for preset in presets or model.clusters:
        task = PlanningTask(captured, load_cluster(preset), model.optimizer)
        for cheaper in (False, True):
            start = time.process_time()
            if cheaper:
                parts = in_micro_batches(task, model.most_micro_batches)
                task = replace(task, recompute=True, in_micro_batches=parts)
            before_s = capture_s + time.process_time() - start
            row = {"model": name, "preset": preset, **measured(task, before_s)}
            print(json.dumps(row), flush=True)
            found.append(row)
    return found


def in_micro_batches(task: PlanningTask, most: int) -> tuple[Any, ...]:
    """In 2, 4, ... up to ``most`` of them; none where the model does not allow it."""
    try:
        rows = batch_rows(task.captured)
        return tuple(micro_batched(task.captured, n) for n in doubled(most) if rows % n == 0)
    except TensorOptError as error:
        print(f"no micro-batches: {error}", flush=True)
        return ()


def measured(task: PlanningTask, before_s: float) -> dict[str, Any]:
    """What ``mini_time`` does by default, in its parts."""
    limit, devices = task.default_memory_limit, task.cluster.num_devices
    start = time.process_time()
    frontier = find_frontier(task, devices, [limit])
    searched = time.process_time()
    by_sums = frontier.at(limit) if frontier.smallest.memory_bytes <= limit else None
    counted, before = _Counted(), time.process_time()
    logger = logging.getLogger("tensoropt_torch.simulate.refine")
    logger.setLevel(logging.INFO)
    logger.addHandler(counted)
    try:
        point = pick_within(task, frontier, limit)
        plan, least = point.plan, None
    except PeakTooLargeError as error:
        plan, least = None, error.least_bytes
    simulating_s = time.process_time() - before
    logger.removeHandler(counted)
    peak_of_sums = None
    if by_sums is not None:
        same = plan is not None and point.point is by_sums
        peak_of_sums = plan.peak_bytes if same else peak(task, by_sums.plan, 0)
    return {
        "devices": devices,
        "recompute": task.recompute,
        "micro_batches": [part.micro_batches for part in task.in_micro_batches],
        "points": len(frontier),
        "limit_bytes": limit,
        "device_bytes": task.cluster.device.memory_bytes,
        "planning_s": before_s + searched - start,
        "simulating_s": simulating_s,
        "simulated_points": counted.count,
        "sum_bytes": None if plan is None else plan.memory_bytes,
        "peak_bytes": None if plan is None else plan.peak_bytes,
        "other_ranks_bytes": {} if plan is None else others(task, plan),
        "time_s": None if plan is None else plan.time_s,
        "least_peak_bytes": least,
        "pick_of_sums_bytes": None if by_sums is None else by_sums.memory_bytes,
        "peak_of_pick_of_sums_bytes": peak_of_sums,
        "machine": machine(),
    }


def peak(task: PlanningTask, plan: Plan, rank: int) -> int:
    """Of one rank."""
    return simulate_step(plan, task.captured, replace(step_of(task), rank=rank)).peak_bytes


def others(task: PlanningTask, plan: Plan) -> dict[str, int]:
    """The peak of the last rank, whose part of everything is the last one."""
    rank = plan.num_devices - 1
    return {str(rank): peak(task, plan, rank)}


class _Counted(logging.Handler):
    """How many points are simulated: each has a line in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("simulated ")
