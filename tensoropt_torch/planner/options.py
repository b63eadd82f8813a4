"""The three options that pick from frontiers: ``mini_time``,
``mini_parallelism`` and ``profiling`` (section 3 of the paper)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from tensoropt_torch import _C
from tensoropt_torch.config import DeviceType, device_counts, mesh_axes
from tensoropt_torch.config.cluster import Cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import (
    InputMode,
    MeasuredCurve,
    OpRecord,
    Settings,
    default_max_configs,
)
from tensoropt_torch.planner.frontier import Frontier, FrontierPoint, format_bytes
from tensoropt_torch.planner.space import make_planner

# What is compared with a memory limit: the sums that the search uses, or simulated
# peaks (docs/costs.md).
Predictor = Literal["sums", "simulated"]

# Part of the device's memory that sums may fill by default: the rest is for what they do
# not see.
DEFAULT_MEMORY_FRACTION = 0.9

# The same of simulated peaks. On GPUs workspaces of libraries, buffers of NCCL and
# fragmentation are not simulated.
SIMULATED_FRACTIONS: Mapping[DeviceType, float] = {"cpu": 1.0, "cuda": 0.9}


def default_memory_fraction(predictor: Predictor, device: DeviceType) -> float:
    """The part of a device's memory that predictions may fill if nothing is known of
    their errors.

    Raises:
        TensorOptError: there is no such predictor.
    """
    if predictor not in get_args(Predictor):
        raise TensorOptError(
            f"memory='{predictor}' is not known; choose one of {', '.join(get_args(Predictor))}"
        )
    return DEFAULT_MEMORY_FRACTION if predictor == "sums" else SIMULATED_FRACTIONS[device]


OPTIMIZER_STATE_FACTORS: Mapping[str, float] = {
    "sgd": 0.0,
    "momentum": 1.0,
    "adagrad": 1.0,
    "rmsprop": 1.0,
    "adam": 2.0,
    "adamw": 2.0,
}


@dataclass(frozen=True)
class SearchSettings:
    """How to search: see ``csrc/search/frontier_tracking.h``.

    Attributes:
        epsilon: the relative error allowed on the frontier; 0: exact.
        algorithm: ``"ldp"``, or ``"elimination"``, the slower baseline of the
            paper (its sections 4.2 and 4.1).
        num_threads: 0 means all cores. The result does not depend on it.
        max_conditioning_work: pairs of points, as estimated, that exact
            elimination of hubs may cost; beyond, heuristics fix hubs.
        heuristics: each is tried and the results are united: ``"least_memory"``,
            ``"least_time"``, or the weight of memory in a weighted sum with time,
            from 0 to 1. By default both and a weight of a half.
        order_seed: not 0: eliminates in a random order; for tests.
        use_bounds: rule out with bounds what cannot improve on known strategies;
            without, every product is computed, as the paper does.
    """

    epsilon: float = 1e-2
    algorithm: str = "ldp"
    num_threads: int = 0
    max_conditioning_work: float = 1e11
    heuristics: tuple[str | float, ...] = ()
    order_seed: int = 0
    use_bounds: bool = True

    def run(
        self,
        planner: _C.Planner,
        memory_limit: float = math.inf,
        allowed: Sequence[Sequence[bool]] = (),
    ) -> _C.SearchResult:
        """Search the strategies of ``planner``; if ``allowed`` is given, only with
        the configs of each space node that it marks."""
        options = _C.SearchOptions(
            algorithm=self.algorithm,
            epsilon=self.epsilon,
            memory_limit=memory_limit,
            num_threads=self.num_threads,
            heuristics=[_memory_weight(heuristic) for heuristic in self.heuristics],
            max_conditioning_work=self.max_conditioning_work,
            order_seed=self.order_seed,
            use_bounds=self.use_bounds,
        )
        return planner.search(options, allowed)


def _memory_weight(heuristic: str | float) -> float:
    names = {"least_memory": 1.0, "least_time": 0.0}
    weight = names.get(heuristic) if isinstance(heuristic, str) else heuristic
    if weight is None or not 0 <= weight <= 1:
        raise TensorOptError(
            f"heuristic {heuristic!r} is not known; give {', '.join(map(repr, names))}, or the "
            "weight of memory against time, a number from 0 to 1"
        )
    return float(weight)


@dataclass(frozen=True)
class PlanningTask:
    """A model, where it shall run, and how it is trained.

    ``measured`` are times of collectives on ``measured_on`` devices, and
    ``operators`` of operators while so many were busy; they say nothing of other
    device counts. ``memory_fraction`` is the part of a device's memory that plans
    may use if no limit is given. ``overlap``: reshards of parameters and of their gradients
    run while the device computes; None: where that makes steps faster.
    """

    captured: CapturedModel
    cluster: Cluster
    optimizer: str = "adamw"
    inputs: InputMode = "replicated"
    space: str = "ordered"
    max_configs: int | None = None
    split_spatial: bool = False
    measured: tuple[MeasuredCurve, ...] = ()
    measured_on: int = 0
    operators: tuple[OpRecord, ...] = ()
    memory_fraction: float = DEFAULT_MEMORY_FRACTION
    overlap: bool | None = None
    search: SearchSettings = field(default_factory=SearchSettings)

    def settings(self, num_devices: int) -> Settings:
        """The strategy space on ``num_devices`` devices of the cluster."""
        factor = OPTIMIZER_STATE_FACTORS.get(self.optimizer)
        if factor is None:
            raise TensorOptError(
                f"optimizer '{self.optimizer}' is not known; choose the one with the same number "
                f"of state tensors per parameter: {', '.join(OPTIMIZER_STATE_FACTORS)}"
            )
        return Settings(
            cluster=self.cluster.to_dict(),
            mesh_axes=tuple(mesh_axes(self.cluster, num_devices)),
            measured=self.measured if num_devices == self.measured_on else (),
            space=self.space,
            optimizer_state_factor=factor,
            inputs=self.inputs,
            max_configs=self.max_configs or default_max_configs(num_devices),
            split_spatial=self.split_spatial,
            operators=self.operators if num_devices == self.measured_on else (),
            overlap=self._overlaps,
        )

    def with_runtime(self, **changes: Any) -> PlanningTask:
        """The task on devices with other fields of their ``Runtime``."""
        device = self.cluster.device
        device = replace(device, runtime=replace(device.runtime, **changes))
        return replace(self, cluster=replace(self.cluster, device=device))

    @property
    def _overlaps(self) -> bool:
        if self.overlap is not None:
            return self.overlap
        device = self.cluster.device
        exposed = device.runtime.exposed
        # A GPU's network does not need what computes; processes of a CPU share its cores.
        return device.type == "cuda" if exposed is None else exposed.hides_something

    @property
    def default_memory_limit(self) -> float:
        """Bytes per device that plans may use if no limit is given."""
        return self.memory_fraction * self.cluster.device.memory_bytes


@dataclass(frozen=True)
class ProfileRow:
    """What ``num_devices`` devices can do within the memory limit.

    ``time_s`` and ``memory_bytes`` are those of the fastest point that fits,
    None if none fits; ``least_memory_bytes`` is what would do.
    """

    num_devices: int
    time_s: float | None
    memory_bytes: float | None
    least_memory_bytes: float

    @property
    def feasible(self) -> bool:
        return self.time_s is not None


class Candidate:
    """The strategies on one number of devices. What does not change with it, the
    captured model and its graph, is the task's; cost tables are made once."""

    def __init__(self, task: PlanningTask, num_devices: int) -> None:
        self._task = task
        self._settings = task.settings(num_devices)
        self._planner = make_planner(task.captured, self._settings)

    @cached_property
    def least_memory_bytes(self) -> float:
        """The least memory per device of any strategy, in a fraction of the time
        of the whole search."""
        ends = replace(self._task.search, epsilon=_ONLY_THE_ENDS)
        return float(ends.run(self._planner).min_memory)

    def frontier(self, memory_limit: float = math.inf) -> Frontier:
        """The cost frontier, up to ``memory_limit`` bytes per device."""
        start = time.perf_counter()
        result = self._task.search.run(self._planner, memory_limit)
        seconds = time.perf_counter() - start
        complete = self._planner.complete
        return Frontier(result, self._settings, self._task.captured, complete, seconds)


# So large an error is allowed that a search stops when it knows the least memory
# and the least time, which are exact.
_ONLY_THE_ENDS = 1e9


def find_frontier(task: PlanningTask, num_devices: int) -> Frontier:
    """The whole cost frontier on ``num_devices`` devices."""
    return Candidate(task, num_devices).frontier()


def mini_time(
    task: PlanningTask, num_devices: int, memory_limit: float | None = None
) -> FrontierPoint:
    """The fastest strategy on ``num_devices`` devices within the memory limit
    (bytes per device; default: 90 % of the device).

    Raises:
        TensorOptError: nothing fits; says the least memory and the fewest
            devices that would do.
    """
    limit = task.default_memory_limit if memory_limit is None else memory_limit
    frontier = find_frontier(task, num_devices)
    if frontier.smallest.memory_bytes <= limit:
        return frontier.at(limit)
    fewest = _fewest_devices(task, limit, more_than=num_devices)
    raise TensorOptError(
        f"no strategy on {num_devices} devices needs at most {format_bytes(limit)} per device: "
        f"the least is {format_bytes(frontier.least_memory_bytes)}; raise memory_limit to that, or "
        + _advice(task, fewest)
    )


def mini_parallelism(task: PlanningTask, memory_limit: float | None = None) -> FrontierPoint:
    """The fastest strategy on the fewest devices of the cluster that fit.

    Raises:
        TensorOptError: nothing fits on any count; says the least memory.
    """
    limit = task.default_memory_limit if memory_limit is None else memory_limit
    least: list[tuple[float, int]] = []
    for count in plannable_counts(task):
        candidate = Candidate(task, count)
        if candidate.least_memory_bytes <= limit:
            return candidate.frontier().at(limit)
        least.append((candidate.least_memory_bytes, count))
    memory, count = min(least)
    raise TensorOptError(
        f"no number of devices of cluster '{task.cluster.name}' (up to "
        f"{task.cluster.num_devices}) fits {format_bytes(limit)} per device: the least is "
        f"{format_bytes(memory)} on {count}; raise memory_limit to that, or use a smaller batch"
    )


def profile(
    task: PlanningTask,
    counts: Sequence[int],
    memory_limit: float | None = None,
    progress: Callable[[ProfileRow], Any] | None = None,
) -> list[ProfileRow]:
    """The least step time for each device count, without running the job."""
    limit = task.default_memory_limit if memory_limit is None else memory_limit
    rows = []
    for count in counts:
        candidate = Candidate(task, count)
        fits = candidate.least_memory_bytes <= limit
        point = candidate.frontier(limit).at(limit) if fits else None
        row = ProfileRow(
            count,
            point.time_s if point else None,
            point.memory_bytes if point else None,
            candidate.least_memory_bytes,
        )
        rows.append(row)
        if progress is not None:
            progress(row)
    return rows


def plannable_counts(task: PlanningTask) -> list[int]:
    """Device counts of the cluster that the inputs allow."""
    counts = device_counts(task.cluster)
    if task.inputs == "replicated":
        return counts
    sizes = [s.placeholder.meta["val"].shape for s in task.captured.inputs if s.kind == "input"]
    batches = [shape[0] for shape in sizes if len(shape) > 0]
    return [count for count in counts if all(batch % count == 0 for batch in batches)]


def _fewest_devices(task: PlanningTask, limit: float, more_than: int) -> int | None:
    for count in plannable_counts(task):
        if count <= more_than:
            continue
        if Candidate(task, count).least_memory_bytes <= limit:
            return count
    return None


def _advice(task: PlanningTask, fewest: int | None) -> str:
    if fewest is not None:
        return f"use at least {fewest} devices"
    return f"use a smaller batch: no number of devices of '{task.cluster.name}' would do"
