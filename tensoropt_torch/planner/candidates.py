"""Frontiers by number of devices: each number is a candidate."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import cached_property

from tensoropt_torch import _C
from tensoropt_torch.config import device_counts
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Settings
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.searched import FrontierPart, Searched
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import progress
from tensoropt_torch.space.allowed import check_together
from tensoropt_torch.space.rows import rows_of_inputs
from tensoropt_torch.space.search_space import make_space

log = get_logger(__name__)


class Candidate:
    """The strategies on one number of devices. What does not change with it, the
    captured model and its graph, is the task's; cost tables are made once."""

    def __init__(self, task: PlanningTask, num_devices: int) -> None:
        self._task = task
        self._num_devices = num_devices
        self._spaces = list(_spaces(task, num_devices))
        if task.in_micro_batches and len(self._spaces) == 1:
            log.warning(
                "no number of micro-batches is planned on %d devices: %s",
                num_devices,
                "the constraints cannot be met in any"
                if task.constraints
                else "not every device gets rows of each; give inputs='replicated', or a batch "
                "of more rows",
            )

    @cached_property
    def least_memory_bytes(self) -> float:
        """The least memory per device of any strategy, without stages in a fraction of the
        time of the whole search."""
        if self._task.max_stages > 1:
            return self.frontier().least_memory_bytes
        options = self._task.search.options()
        return min(space.least_memory(options) for space, *_ in self._spaces)

    def frontier(
        self, memory_limit: float = math.inf, pick_limits: Sequence[float] = ()
    ) -> Frontier:
        """The cost frontier, up to ``memory_limit`` bytes per device. Points will be
        picked by this limit and by ``pick_limits``: the guarantee holds there too."""
        start = time.perf_counter()
        found = []
        others: list[tuple[float, float]] = []
        spaces = () if self._task.stage_pins else self._spaces
        total = len(spaces) if len(spaces) > 1 else 0
        with progress(_what(self._task, self._num_devices), total, ticking=True) as step:
            for space, settings, captured in spaces:
                if total:
                    step(_micro_batches(settings.micro_batches), more=0)
                result = self._task.search.run(
                    space, memory_limit, pick_limits=pick_limits, others=others
                )
                others += result.points
                found.append(Searched(result, space, settings, captured))
                step()
        in_stages = []
        if self._task.max_stages > 1:
            in_stages.append(self._in_stages(memory_limit, pick_limits, others))
        seconds = time.perf_counter() - start
        fraction, (_, settings, captured) = self._task.memory_fraction, self._spaces[0]
        frontier = Frontier(found, seconds, fraction, in_stages, (settings, captured))
        log.info("%r", frontier)
        log.debug("what the search did: %s", frontier.stats)
        return frontier

    def _in_stages(
        self,
        memory_limit: float,
        pick_limits: Sequence[float],
        known: Sequence[tuple[float, float]],
    ) -> FrontierPart:
        task = self._task
        if task.stage_search is None:
            raise TensorOptError(
                f"max_stages={task.max_stages} is not supported here; it is for find_frontier, "
                "find_strategy, profile, compare and find_tradeoffs: leave it out"
            )
        return task.stage_search(task, self._num_devices, memory_limit, pick_limits, known)


def _spaces(
    task: PlanningTask, num_devices: int
) -> Iterator[tuple[_C.SearchSpace, Settings, CapturedModel]]:
    """The strategy spaces of the batch and of its micro-batches, but for numbers of these in
    which the user's constraints cannot be met.

    Raises:
        TensorOptError: the constraints cannot be met with the whole batch.
    """
    for captured, settings in task.graphs(num_devices):
        try:
            space = make_space(captured, settings)
            check_together(space, captured, settings)
        except TensorOptError as error:
            if captured.micro_batches == 1 or not settings.constraints:
                raise
            log.info("not in %d micro-batches: %s", captured.micro_batches, error)
        else:
            yield space, settings, captured


def _what(task: PlanningTask, num_devices: int) -> str:
    again = ", with recomputation" if task.recompute else ""
    return f"searching the strategies of {num_devices} devices{again}"


def _micro_batches(count: int) -> str:
    return "the whole batch" if count == 1 else f"{count} micro-batches"


def find_frontier(
    task: PlanningTask, num_devices: int, pick_limits: Sequence[float] = ()
) -> Frontier:
    """The whole cost frontier on ``num_devices`` devices, to be picked from by
    ``pick_limits`` (bytes per device)."""
    return Candidate(task, num_devices).frontier(pick_limits=pick_limits)


def fitting_counts(task: PlanningTask, limit: float) -> list[int]:
    """Those whose devices have the memory for parameters and optimizer states at all, and the
    largest."""
    counts = plannable_counts(task)
    least = task.state_bytes / limit if limit > 0 else math.inf
    return [count for count in counts if count >= least] or counts[-1:]


def plannable_counts(task: PlanningTask) -> list[int]:
    """Device counts of the cluster that the inputs allow."""
    counts = device_counts(task.cluster)
    if task.inputs == "replicated":
        return counts
    rows = rows_of_inputs(task.captured, task.settings(1).shares)
    inputs = (s for s in task.captured.inputs if s.names[0] in rows)
    batches = [s.placeholder.meta["val"].shape[rows[s.names[0]]] for s in inputs]
    return [count for count in counts if all(batch % count == 0 for batch in batches)]
