"""One search in a process of its own: seconds by phase, peak memory, the points."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.isolated import limit_process, run_isolated
from benchmarks.machine import peak_rss_bytes
from benchmarks.models.catalogue import Example
from tensoropt_torch.config.cluster import Cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

ADDRESS_SPACE_BYTES = 16 * 2**30


@dataclass(frozen=True)
class SearchRun:
    """What is searched, and for how many seconds at most.

    ``build`` makes the model and the arguments of a step; a function of a module,
    or a partial of one.
    """

    build: Callable[[], Example]
    cluster: Cluster
    devices: int
    optimizer: str = "adam"
    space: str = "ordered"
    max_configs: int | None = None
    search: SearchSettings = field(default_factory=SearchSettings)
    limit_s: float = 60.0


def timed_search(run: SearchRun) -> dict[str, Any]:
    """The record of the search. If it took longer than the limit that is
    ``more_than_s``, and ``out_of_memory`` says whether memory was what ended it."""
    record = run_isolated(_search, run)
    return {"more_than_s": run.limit_s, "out_of_memory": False} if record is None else record


def _search(run: SearchRun) -> dict[str, Any]:
    start = time.perf_counter()
    with torch.device("meta"):
        model, args = run.build()
    captured = capture(model, args)
    task = PlanningTask(
        captured,
        run.cluster,
        optimizer=run.optimizer,
        space=run.space,
        max_configs=run.max_configs,
        search=run.search,
    )
    after_capture = time.perf_counter()
    rss_before = peak_rss_bytes()
    limit_process(run.limit_s, ADDRESS_SPACE_BYTES)
    space = make_space(captured, task.settings(run.devices))
    space.build(run.search.num_threads)
    after_costs = time.perf_counter()
    limit_process(run.limit_s, ADDRESS_SPACE_BYTES)
    try:
        result = run.search.run(space)
    except MemoryError:
        spent_s = time.perf_counter() - after_costs
        return {"more_than_s": spent_s, "out_of_memory": True}
    end = time.perf_counter()
    return {
        "capture_s": after_capture - start,
        "costs_s": after_costs - after_capture,
        "search_s": end - after_costs,
        "rss_before_bytes": rss_before,
        "peak_rss_bytes": peak_rss_bytes(),
        "exact": bool(result.exact),
        "epsilon": float(result.epsilon) if result.exact else None,
        "complete": bool(space.complete),
        "points": [[memory, time_s] for memory, time_s in result.points],
    }
