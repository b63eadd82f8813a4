"""Times of collectives on a running process group.

A planner needs the time of a collective over a set of mesh axes while all groups
over these axes are active at once, as they are in a training step. Measured times
hold what no formula knows: the transport, the number of threads, neighbours.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from tensoropt_torch.config.cluster import COLLECTIVES, Collective
from tensoropt_torch.measure.machine.clock import SharedClock, undisturbed_s

MIN_BYTES = 1024
FACTORS = (16, 4, 2)  # between sizes, in turn
LEAST_RANGE_BYTES = 4096 * MIN_BYTES  # up to which the first of them is measured in any case
WARM_UPS = 2
PASSES = 5
REPEATS_PER_BATCH = 5
MAX_BATCHES = 4  # of a size in one pass
SMALL_SPREAD = 0.1  # of the median, between the quartiles

# (collective, axis set) -> [(bytes, seconds), ...], bytes ascending.
CollectiveTimes = dict[tuple[Collective, int], list[tuple[int, float]]]


class Journal(Protocol):
    """What an interrupted measurement has left, and where this one is kept."""

    @property
    def known(self) -> CollectiveTimes:
        """Entries that are not measured again; equal on all ranks."""

    def add(self, collective: Collective, axes: int, curve: list[tuple[int, float]]) -> None:
        """Called on every rank after each entry."""


class GroupsByAxes(Protocol):
    """Process groups by axis set, such as ``runtime.groups.AxisGroups``."""

    @property
    def device_type(self) -> str:
        """The type of device whose tensors are sent."""

    def group(self, axes: int) -> dist.ProcessGroup:
        """The group of this rank along the axes of the set."""


def measure_collectives(
    groups: GroupsByAxes,
    axis_sets: Iterable[int],
    max_bytes: int,
    budget_s: float,
    collectives: Sequence[Collective] = COLLECTIVES,
    journal: Journal | None = None,
) -> CollectiveTimes:
    """Measures every collective over every axis set, all its groups at once.

    Collective over the default process group, and equal on all ranks. Sizes are
    powers of two times 1 KiB, as the larger of one rank's input and output. A
    time is that of the slowest rank, ``undisturbed_s`` over repetitions. All sizes
    are measured in turn, then again, and the fastest pass counts, so that what disturbs
    the machine for a while does no harm; each time until repetitions agree within 10 %.
    An entry ends early when its share of the budget is spent: then sizes are farther apart,
    or end below the largest, but not below 4 MiB.

    Args:
        groups: process groups; those of ``axis_sets`` must have been created.
        axis_sets: the axis sets to measure.
        max_bytes: the largest size.
        budget_s: time for everything; small budgets give fewer sizes.
        collectives: which of ``COLLECTIVES``.
        journal: entries known before, and who is told of each new one.

    Returns:
        ``{(collective, axis set): [(bytes, seconds), ...]}``.

    """
    times: CollectiveTimes = dict(journal.known) if journal else {}
    wanted = [(name, axes) for axes in sorted(set(axis_sets)) for name in collectives]
    entries = [entry for entry in wanted if entry not in times]
    clock = SharedClock(torch.device(groups.device_type))
    for index, (name, axes) in enumerate(entries):
        left = budget_s - clock.elapsed_s()
        deadline = clock.last_s + max(0.0, left) / (len(entries) - index)
        times[name, axes] = _measure_entry(name, groups.group(axes), max_bytes, clock, deadline)
        if journal:
            journal.add(name, axes, times[name, axes])
    return times


def measure_sizes(
    groups: GroupsByAxes, collective: Collective, axes: int, sizes: Iterable[int], budget_s: float
) -> list[tuple[int, float]]:
    """One collective over one axis set at these sizes, as ``measure_collectives`` does
    it. All sizes are measured; when the budget is spent, those left with few repeats."""
    clock = SharedClock(torch.device(groups.device_type))
    entry = _Entry(collective, groups.group(axes), clock, budget_s)
    for size in sizes:
        entry.measure(size)
    entry.measure_again(PASSES - 1)
    return entry.curve()


def _measure_entry(
    name: Collective,
    group: dist.ProcessGroup,
    max_bytes: int,
    clock: SharedClock,
    deadline_s: float,
) -> list[tuple[int, float]]:
    entry = _Entry(name, group, clock, deadline_s)
    # The whole range first, then what is between: a large size that was not measured would be
    # guessed from what small ones differ by, which is mostly noise.
    for factor in FACTORS:
        size = MIN_BYTES
        while size <= max_bytes:
            in_any_case = factor == FACTORS[0] and size <= LEAST_RANGE_BYTES
            if size not in entry:
                if not in_any_case and not entry.has_time_for(size):
                    break
                entry.measure(size, batches=1)
            size *= factor
    entry.measure_again(PASSES - 1)
    return entry.curve()


class _Entry:
    """Measures one collective over one group. All decisions are shared by the ranks."""

    def __init__(
        self, name: Collective, group: dist.ProcessGroup, clock: SharedClock, deadline_s: float
    ) -> None:
        self._name = name
        self._group = group
        self._clock = clock
        self._deadline_s = deadline_s
        self._times: dict[int, list[float]] = {}  # by size, one of each pass

    def __contains__(self, size: int) -> bool:
        """Whether it was measured."""
        return size in self._times

    def is_late(self) -> bool:
        """Whether the deadline is over on any rank."""
        return self._clock.elapsed_s() >= self._deadline_s

    def has_time_for(self, size: int) -> bool:
        """Whether it may be over by the deadline, by what the next smaller one took. Not for
        the first."""
        below = max(known for known in self._times if known < size)
        about_s = min(self._times[below]) * size / below * (WARM_UPS + REPEATS_PER_BATCH)
        return self._clock.elapsed_s() + about_s < self._deadline_s

    def measure(self, size: int, batches: int = MAX_BATCHES) -> None:
        """Adds a pass: times of the slowest rank, until they agree."""
        call = _prepare(self._name, self._group, size, self._clock.device)
        for _ in range(WARM_UPS):
            call()
        samples: list[float] = []
        for _ in range(batches):
            batch = [_time_once(call, self._clock) for _ in range(REPEATS_PER_BATCH)]
            samples += self._clock.slowest(batch)
            if spread(samples) < SMALL_SPREAD or self.is_late():
                break
        self._times.setdefault(size, []).append(undisturbed_s(samples))

    def measure_again(self, passes: int) -> None:
        """All sizes so often, or until the deadline."""
        for _ in range(passes):
            for size in list(self._times):
                if self.is_late():
                    return
                self.measure(size)

    def curve(self) -> list[tuple[int, float]]:
        """(bytes, s), bytes ascending."""
        return [(size, min(times)) for size, times in sorted(self._times.items())]


def _time_once(call: Callable[[], object], clock: SharedClock) -> float:
    clock.now()  # what came before is done
    dist.barrier()
    start = clock.now()
    call()
    return clock.now() - start


def spread(samples: Sequence[float]) -> float:
    """The distance between the quartiles, as a share of the median."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / middle if middle > 0 else 0.0


def _prepare(
    name: Collective, group: dist.ProcessGroup, size: int, device: torch.device
) -> Callable[[], object]:
    """A call of the collective with ``size`` bytes at the larger end."""
    ranks = dist.get_world_size(group)
    part = torch.ones(max(1, size // 4 // ranks), device=device)
    whole = torch.ones(part.numel() * ranks, device=device)
    other = torch.empty_like(whole)
    first = dist.get_global_rank(group, 0)
    # Newer names first: the older ones warn where both exist.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls: dict[Collective, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole.fill_(1), group=group),
        "all_gather": lambda: all_gather(whole, part, group=group),
        "reduce_scatter": lambda: reduce_scatter(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, first, group=group),
    }
    return calls[name]
