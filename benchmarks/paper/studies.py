"""The studies: each plans something and returns a record for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import growth
from benchmarks.paper.records import baseline_records, curve, fastest_within, frontier_record
from benchmarks.paper.setups import (
    MEMORY_LIMITS,
    SETUPS,
    Setup,
    paper_cluster,
    task_of,
    with_bandwidth,
)
from benchmarks.timed_search import SearchRun, timed_search
from tensoropt_torch.config.cluster import Cluster
from tensoropt_torch.planner.candidates import Candidate
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask

DEVICES = 16
CROSS_MACHINE_FACTORS = (0.5, 1.0, 4.0)
PCIE_FACTOR = 1 / 20  # of NVLink


@dataclass(frozen=True)
class Scope:
    """How much is planned, and how precisely.

    Attributes:
        setups: the models, by name.
        counts: the device counts of the profile.
        epsilon: the error allowed on frontiers; the search times have their own.
        growth: the sizes of the study of growth.
    """

    setups: Mapping[str, Setup] = field(default_factory=lambda: SETUPS)
    counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    epsilon: float = 1e-2
    search_epsilon: float = 1e-3
    search_limit_s: float = 40.0
    growth: growth.Sizes = field(default_factory=growth.Sizes)

    @property
    def search(self) -> SearchSettings:
        return SearchSettings(epsilon=self.epsilon)


def frontiers(scope: Scope) -> dict[str, Any]:
    """Every model's frontier on 8 and 16 devices, its network time, and baselines."""
    models = {}
    for name, setup in scope.setups.items():
        task = task_of(setup, scope.search)
        models[name] = {
            "title": setup.title,
            "optimizer": setup.optimizer,
            "devices": {
                str(devices): {
                    **frontier_record(task, devices, split=True),
                    "baselines": baseline_records(task, devices),
                }
                for devices in (DEVICES // 2, DEVICES)
            },
        }
    return {"epsilon": scope.epsilon, "models": models}


def bandwidth(scope: Scope) -> dict[str, Any]:
    """Every model's frontier where the network is slower or faster."""
    models = {name: _by_bandwidth(setup, scope.search) for name, setup in scope.setups.items()}
    return {"epsilon": scope.epsilon, "pcie_factor": PCIE_FACTOR, "models": models}


def _by_bandwidth(setup: Setup, search: SearchSettings) -> dict[str, Any]:
    cluster = paper_cluster()

    def on(changed: Cluster) -> dict[str, Any]:
        return frontier_record(task_of(setup, search, changed), DEVICES)

    between = {f"{f:g}x": on(with_bandwidth(cluster, 0, f)) for f in CROSS_MACHINE_FACTORS}
    inside = {"NVLink": between["1x"], "PCIe": on(with_bandwidth(cluster, 1, PCIE_FACTOR))}
    return {"title": setup.title, "between_machines": between, "inside_machines": inside}


def parallelism(scope: Scope) -> dict[str, Any]:
    """The least step time within memory limits by device count: the paper's profiling."""
    machines = max(2, max(scope.counts) // 8)
    models = {}
    for name, setup in scope.setups.items():
        task = task_of(setup, scope.search, paper_cluster(machines))
        rows = []
        for devices in scope.counts:
            systems = {"TensorOpt": _our_profile(task, devices)}
            for system, points in baseline_records(task, devices).items():
                systems[system] = _profile(points, points[0][0] if points else None)
            rows.append({"devices": devices, "systems": systems})
        models[name] = {"title": setup.title, "optimizer": setup.optimizer, "rows": rows}
    return {"epsilon": scope.epsilon, "memory_limits": dict(MEMORY_LIMITS), "models": models}


def _our_profile(task: PlanningTask, devices: int) -> dict[str, Any]:
    candidate = Candidate(task, devices)
    least, limit = candidate.least_memory_bytes, max(MEMORY_LIMITS.values())
    frontier = candidate.frontier(limit) if least <= limit else ()
    return _profile(curve([(p.memory_bytes, p.time_s) for p in frontier]), least)


def _profile(points: list[list[float]], least: float | None) -> dict[str, Any]:
    return {
        "least_memory_bytes": least,
        "fastest": {label: fastest_within(points, limit) for label, limit in MEMORY_LIMITS.items()},
    }


def search_time(scope: Scope) -> dict[str, Any]:
    """Seconds of FT-LDP, with one thread too, and of FT-Elimination; of both also
    without bounds, closer to the paper's."""
    search = SearchSettings(epsilon=scope.search_epsilon)
    variants = {
        "FT-LDP": search,
        "FT-LDP, one thread": replace(search, num_threads=1),
        "FT-Elimination": replace(search, algorithm="elimination"),
        "FT-LDP without bounds": replace(search, use_bounds=False),
        "FT-Elimination without bounds": replace(search, algorithm="elimination", use_bounds=False),
    }
    models = {}
    for name, setup in scope.setups.items():
        run = SearchRun(
            setup.build,
            paper_cluster(),
            DEVICES,
            optimizer=setup.optimizer,
            limit_s=scope.search_limit_s,
        )
        runs = {}
        for label, settings in variants.items():
            record = timed_search(replace(run, search=settings))
            record["num_points"] = len(record.pop("points", []))
            runs[label] = record
        models[name] = {"title": setup.title, "runs": runs}
    return {
        "epsilon": scope.search_epsilon,
        "devices": DEVICES,
        "limit_s": scope.search_limit_s,
        "models": models,
    }


STUDIES: Mapping[str, Callable[[Scope], dict[str, Any]]] = {
    "frontiers": frontiers,
    "bandwidth": bandwidth,
    "parallelism": parallelism,
    "search_time": search_time,
    "growth": lambda scope: growth.growth(scope.growth),
    "losses": lambda scope: growth.losses(scope.growth),
}
