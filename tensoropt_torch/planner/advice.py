"""What would fit where nothing does: ways that the user has not asked for, each of them tried.

::

    advice(task, 8, limit, least_bytes, attempt)
    # "a device has 74.51 GiB. What fits: set recompute=True (--recompute): 4.1 s a step with
    # 60.1 GiB"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tensoropt_torch.batches import batch_rows, micro_batched
from tensoropt_torch.config.preset_names import larger_preset
from tensoropt_torch.config.presets import load_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.planner.candidates import plannable_counts
from tensoropt_torch.planner.memory_limits import limit_advice
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.units import format_bytes, format_seconds

log = get_logger(__name__)

MICRO_BATCHES = (8, 32)  # that are tried
EVERY_COUNT = 16  # on clusters of up to so many devices every number of them is tried
MACHINES = (2, 4, 8)  # times as many


@dataclass(frozen=True)
class Fit:
    """A strategy within a limit: seconds of a step, and bytes per device of what the limit is
    compared with."""

    time_s: float
    memory_bytes: float


# The fastest strategy of a task on so many devices within a limit, None if none fits.
Attempt = Callable[[PlanningTask, int, float], Fit | None]


@dataclass(frozen=True)
class _Way:
    words: str
    task: PlanningTask
    num_devices: int


def advice(
    task: PlanningTask, num_devices: int, limit: float, least_bytes: float, attempt: Attempt
) -> str:
    """What would do on ``num_devices`` devices, or on how many, if ``least_bytes`` per device is
    the least that the task needs."""
    kinds = _cheaper(task, num_devices), _more_devices(task, num_devices)
    found = [_first_that_fits(ways, limit, attempt) for ways in kinds]
    said = "; or ".join(one for one in found if one)
    device_bytes = task.cluster.device.memory_bytes
    if said and least_bytes <= device_bytes:
        return f"raise memory_limit to that. What fits without: {said}"
    if said:
        return f"a device has {format_bytes(device_bytes)}. What fits: {said}"
    return f"{limit_advice(least_bytes, device_bytes)}use a smaller batch. {_tried(task)}"


def _first_that_fits(ways: Iterator[_Way], limit: float, attempt: Attempt) -> str:
    """The first way that fits, in words, with what it takes; an empty text if none fits."""
    for way in ways:
        try:
            fit = attempt(way.task, way.num_devices, limit)
        except TensorOptError as error:
            log.info("not tried: %s: %s", way.words, error)
            continue
        if fit is not None:
            costs = f"{format_seconds(fit.time_s)} a step with {format_bytes(fit.memory_bytes)}"
            return f"{way.words}: {costs}"
    return ""


_RECOMPUTE = "recompute=True (--recompute)"


def _cheaper(task: PlanningTask, num_devices: int) -> Iterator[_Way]:
    """On the same devices: what costs time and no memory, as far as it was not asked for."""
    again = replace(task, recompute=True)
    if not task.recompute:
        yield _Way(f"set {_RECOMPUTE}", again, num_devices)
    if task.in_micro_batches:
        return
    for words, part in _in_micro_batches(task):
        yield _Way(f"set {words}", replace(task, in_micro_batches=(part,)), num_devices)
    if not task.recompute:
        for words, part in _in_micro_batches(task):
            both = replace(again, in_micro_batches=(part,))
            yield _Way(f"set {_RECOMPUTE} and {words}", both, num_devices)


def _in_micro_batches(task: PlanningTask) -> Iterator[tuple[str, CapturedModel]]:
    """The model in as many of them as are tried, if its batch can be split so."""
    rows = batch_rows(task.captured, task.whole_inputs)
    for count in MICRO_BATCHES:
        if rows == 0 or rows % count or count <= task.captured.micro_batches:
            continue
        try:
            part = micro_batched(task.captured, count, task.whole_inputs)
        except TensorOptError as error:
            log.info("not in micro-batches: %s", error)
            return
        yield f"max_micro_batches={count} (--max-micro-batches {count})", part


def _more_devices(task: PlanningTask, num_devices: int) -> Iterator[_Way]:
    """Advice to use more devices of the cluster, then more machines of its kind."""
    counts = [count for count in plannable_counts(task) if count > num_devices]
    if task.cluster.num_devices > EVERY_COUNT:
        counts = [count for count in counts if _is_power_of_two(count, num_devices)]
    for count in counts:
        yield _Way(f"use at least {count} devices", task, count)
    for times in MACHINES:
        count = times * task.cluster.num_devices
        name = larger_preset(task.cluster.name, count)
        if name is not None:
            larger = replace(task, cluster=load_cluster(name))
            words = f"use more machines, such as cluster='{name}' (--cluster {name})"
            if count in plannable_counts(larger):
                yield _Way(words, larger, count)


def _is_power_of_two(count: int, num_devices: int) -> bool:
    times, rest = divmod(count, num_devices)
    return rest == 0 and times & (times - 1) == 0


def _tried(task: PlanningTask) -> str:
    """What was tried besides, in vain."""
    ways = [
        "" if task.recompute else "recomputation",
        "" if task.in_micro_batches else "micro-batches",
        f"more devices than the {task.cluster.num_devices} of '{task.cluster.name}'",
    ]
    return f"Tried as well, and not enough: {', '.join(way for way in ways if way)}"
