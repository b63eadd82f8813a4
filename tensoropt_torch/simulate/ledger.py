"""What was allocated and freed during a simulated step, and what that says.

A ``Ledger`` is filled while the step runs. What a piece of memory was for is
known only afterwards, when its whole life is: an activation that backward needs
is what was made in forward and outlives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, get_args

from tensoropt_torch.units import format_bytes

Category = Literal[
    "parameters",
    "gradients",
    "optimizer state",
    "inputs and buffers",
    "gathered parameters",
    "activations",
    "reshard buffers",
    "temporaries",
]
CATEGORIES: tuple[Category, ...] = get_args(Category)
Phase = Literal["start", "forward", "backward", "optimizer", "end"]
OUTSIDE = ("start", "end")  # of the step

BLOCK_BYTES = 512  # of CUDA's caching allocator
# Operators, by how they begin.
RESHARDS = (
    *("reshard", "begin_value", "begin_gathers", "begin_gradient"),
    *("take_value", "take_gradients"),
    *("all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor", "all_to_all_single"),
)


@dataclass
class Allocation:
    """The life of a piece of memory; events count from 0, ``died`` None: at the end."""

    num_bytes: int
    operator: str
    node: str  # of the rank's graph; empty outside of forward
    phase: Phase
    born: int
    died: int | None = None
    category: Category | None = None  # where its owner is known


@dataclass(frozen=True)
class Usage:
    """What an operator holds at the peak; ``count`` pieces of memory.

    ``node`` is the call in the rank's graph that made it, empty outside of forward.
    """

    operator: str
    node: str
    category: Category
    num_bytes: int
    count: int


@dataclass(frozen=True)
class MemoryProfile:
    """Memory of one rank in a training step.

    Attributes:
        peak_bytes: the most that was alive at one moment.
        phase, operator: when that was: during this operator of this phase.
        categories: bytes at the peak by category; their sum is ``peak_bytes``. Gathered
            parameters are copies for computing, whether gathered, cast or both.
        usages: what operators hold at the peak, the most first.
        phase_peaks: the peak of each phase.
        curve: bytes alive after every event of the step (something allocated or freed); of many
            micro-batches those of the first two and of the last, whose needs the others share.
        begins: the event of ``curve`` with which each phase begins.
        rank: the rank that was simulated.
        unknown: operators whose workspaces were needed but could not be found out.
    """

    peak_bytes: int
    phase: Phase
    operator: str
    categories: dict[Category, int]
    usages: tuple[Usage, ...]
    phase_peaks: dict[Phase, int]
    curve: tuple[int, ...] = field(repr=False)
    begins: dict[Phase, int] = field(default_factory=dict, repr=False)
    rank: int = 0
    unknown: tuple[str, ...] = ()

    def __repr__(self) -> str:
        largest = sorted(self.categories.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest if size > 0)
        return (
            f"MemoryProfile(rank {self.rank}: {format_bytes(self.peak_bytes)} in {self.phase} "
            f"during {self.operator}; {parts})"
        )


def exact_bytes(num_bytes: int) -> int:
    """What the CPU's allocator takes."""
    return num_bytes


def cuda_bytes(num_bytes: int) -> int:
    """What CUDA's caching allocator takes: whole blocks."""
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Ledger:
    """Allocations in the order of the step.

    Args:
        rounded: bytes that the allocator takes for bytes asked for.

    """

    def __init__(self, rounded: Callable[[int], int] = exact_bytes) -> None:
        self._rounded = rounded
        self.allocations: list[Allocation] = []
        self.phase: Phase = "start"
        self.operator = "start"
        self.node = ""  # of the rank's graph, in forward
        self._events: list[tuple[int, int]] = []  # (allocation, 1 or -1)
        self._marks: list[tuple[Phase, str]] = []  # by event
        self._forward_end: int | None = None

    def allocate(self, num_bytes: int) -> int:
        """Memory that lives until ``free``; returns its number."""
        number = len(self.allocations)
        born = len(self._events)
        self.allocations.append(Allocation(num_bytes, self.operator, self.node, self.phase, born))
        self._record(number, 1)
        return number

    def free(self, number: int) -> None:
        """The memory is given back."""
        self.allocations[number].died = len(self._events)
        self._record(number, -1)

    def label_since(self, first: int, category: Category) -> None:
        """Says what the allocations from this one on are for that live and are not labelled."""
        for allocation in self.allocations[first:]:
            if allocation.died is None and allocation.category is None:
                allocation.category = category

    def enter(self, phase: Phase) -> None:
        """What follows happens in this phase."""
        if self.phase == "forward":
            self._forward_end = len(self._events)
        self.phase = phase
        self.operator = phase
        self.node = ""

    def _record(self, number: int, sign: int) -> None:
        self._events.append((number, sign))
        self._marks.append((self.phase, self.operator))

    def profile(self, rank: int = 0, unknown: Iterable[str] = ()) -> MemoryProfile:
        """The profile of all phases of the step."""
        sizes = [self._rounded(a.num_bytes) for a in self.allocations]
        alive_bytes = list(accumulate(sign * sizes[number] for number, sign in self._events))
        peaks: dict[Phase, int] = {}
        begins: dict[Phase, int] = {}
        curve: list[int] = []
        peak = -1
        for event, (phase, _) in enumerate(self._marks):
            if phase in OUTSIDE:
                continue
            begins.setdefault(phase, len(curve))
            curve.append(alive_bytes[event])
            peaks[phase] = max(peaks.get(phase, 0), alive_bytes[event])
            if peak < 0 or alive_bytes[event] > alive_bytes[peak]:
                peak = event
        alive = [
            (a, size)
            for a, size in zip(self.allocations, sizes, strict=True)
            if a.born <= peak and (a.died is None or a.died > peak)
        ]
        categories: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
        usages: dict[tuple[str, str, Category], list[int]] = defaultdict(list)
        for allocation, size in alive:
            category = self._category(allocation)
            categories[category] += size
            usages[allocation.operator, allocation.node, category].append(size)
        phase, operator = self._marks[peak]
        return MemoryProfile(
            alive_bytes[peak],
            phase,
            operator,
            categories,
            tuple(
                sorted(
                    (Usage(*key, sum(parts), len(parts)) for key, parts in usages.items()),
                    key=lambda usage: (-usage.num_bytes, usage.operator, usage.node),
                )
            ),
            peaks,
            tuple(curve),
            begins,
            rank,
            tuple(sorted(set(unknown))),
        )

    def _category(self, allocation: Allocation) -> Category:
        if allocation.category is not None:
            return allocation.category
        end = self._forward_end
        outlives = allocation.died is None or (end is not None and allocation.died >= end)
        if allocation.phase == "forward" and outlives:
            return "activations"
        reshard = allocation.operator.startswith(RESHARDS)
        return "reshard buffers" if reshard else "temporaries"
