"""What stages may be: parts of a graph between places where it is well cut, and which of them are
alike."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch import fx

from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.space.rows import loss_node
from tensoropt_torch.stages.places import crossing_bytes, module_of, work_of
from tensoropt_torch.stages.roles import Roles, changed_by, tensors_of

CUTS_PER_STAGE = 5
# A stage may have so much of its even share of the work.
LEAST_SHARE, MOST_SHARE = 0.5, 1.6


@dataclass(frozen=True)
class Interval:
    """The calls from one cut up to another one, by their numbers.

    Attributes:
        alike: equal for intervals whose stages are the same but for the names of things.
        sent_bytes: of the values that cross its last cut.
        received_bytes: of those that cross its first.
    """

    first: int
    last: int
    alike: Hashable = field(repr=False)
    sent_bytes: int
    received_bytes: int = 0


class Intervals:
    """Those of one graph with its loss. ``pinned`` are cuts that all pipelines have.

    Attributes:
        roles: of the nodes of the graph.
    """

    def __init__(self, captured: CapturedModel, pinned: Sequence[int] = ()) -> None:
        self._captured = captured
        self._pinned = frozenset(pinned)
        self.roles = Roles(captured, loss_node(captured))
        self._calls = self.roles.calls
        self._numbers = {node: number for number, node in enumerate(self._calls)}
        self._bytes = crossing_bytes(self.roles)
        self._work = [0.0, *itertools.accumulate(work_of(node) for node in self._calls)]
        self._kinds = {source.placeholder: source.kind for source in captured.sources}
        owns = (int(node in self.roles.owning) for node in self._calls)
        self._owning = [0, *itertools.accumulate(owns)]
        self._tokens = [self._token(number) for number in range(len(self._calls))]
        self._crossings: dict[int, Hashable] = {}
        self._last_use = {node: self._last(node) for node in self._calls}

    def of_stages(self, stages: int) -> list[list[Interval]]:
        """What each of so many stages may be: with some share of the work, with parameters of its
        own, and so that the other stages can have the rest."""
        cuts = self.cuts(stages)
        last = len(self._calls)
        ends = [{0}]  # where each stage may begin, and the last one end
        for stage in range(stages):
            after = {last} if stage == stages - 1 else set(cuts) - {last}
            ends.append({b for b in after if any(self._may_be(a, b, stages) for a in ends[-1])})
        for stage in reversed(range(stages)):
            ends[stage] = {
                a for a in ends[stage] if any(self._may_be(a, b, stages) for b in ends[stage + 1])
            }
        return [
            [
                self._interval(a, b)
                for a in sorted(ends[stage])
                for b in sorted(ends[stage + 1])
                if self._may_be(a, b, stages)
            ]
            for stage in range(stages)
        ]

    def places(self) -> list[int]:
        """By node of the lowered graph: the number of its call; -1 of what is no call, and of those
        that need not be in the stage that has the calls around them."""
        lowering = self._captured.lowering
        moving = self.roles.again | self.roles.before_batch
        places = [-1] * lowering.graph.num_nodes()
        for number, node in enumerate(self._calls):
            if node in lowering.nodes and node not in moving and not changed_by(node):
                places[int(lowering.nodes[node])] = number
        return places

    def _may_be(self, first: int, last: int, stages: int) -> bool:
        """Whether a stage may have the calls between."""
        if first >= last or self._owning[first] == self._owning[last]:
            return False
        if any(first < cut < last for cut in self._pinned):
            return False
        if not self._pinned.isdisjoint((first, last)):
            return True  # whatever is left of the work
        share = (self._work[last] - self._work[first]) * stages / self._work[-1]
        return LEAST_SHARE <= share <= MOST_SHARE

    def cuts(self, stages: int) -> list[int]:
        """Places for the cuts of so many stages, about in equal distances of work, where few bytes
        cross and no module is cut deep inside; with both ends, and what is pinned."""
        count = stages * CUTS_PER_STAGE
        wanted = [self._work[-1] * number / count for number in range(count + 1)]
        found = (
            self._best(*around) for around in zip(wanted, wanted[1:], wanted[2:], strict=False)
        )
        return sorted({0, len(self._calls), *self._pinned}.union(*found))

    def _best(self, least: float, wanted: float, most: float) -> list[int]:
        """The best place between these amounts of work, if there is any."""
        first, last = bisect_left(self._work, least), bisect_right(self._work, most)
        near = [n for n in range(max(first, 1), min(last, len(self._calls))) if self._bytes[n]]
        fewest = min((self._bytes[n] for n in near), default=0)
        ranks = (
            (self._depth(n), abs(self._work[n] - wanted), n)
            for n in near
            if self._bytes[n] == fewest
        )
        return [number for *_, number in sorted(ranks)[:1]]

    def _depth(self, number: int) -> int:
        """Of the innermost module that has the calls on both sides."""
        before, after = (_path(self._calls[n]) for n in (number - 1, number))
        pairs = zip(before, after, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _interval(self, first: int, last: int) -> Interval:
        ends = (first == 0, last == len(self._calls))
        alike = (ends, tuple(self._tokens[first:last]), self._crossing(first), self._crossing(last))
        return Interval(first, last, alike, self._bytes[last], self._bytes[first])

    def _crossing(self, cut: int) -> Hashable:
        """The values that cross, by how long before they are made."""
        if cut not in self._crossings:
            self._crossings[cut] = self._made_before(cut)
        return self._crossings[cut]

    def _made_before(self, cut: int) -> Hashable:
        made = (node for node in self._calls[:cut] if self._last_use[node] >= cut)
        return tuple((cut - self._numbers[node], _shape(node)) for node in made)

    def _last(self, node: fx.Node) -> int:
        """The number of the last call that uses what a call gives, unless it is made again."""
        if node in self.roles.again:
            return -1
        return max(
            (self._numbers[user] for user in node.users if user in self._numbers), default=-1
        )

    def _token(self, number: int) -> Hashable:
        """What a call is, by the distances of its operands."""
        node = self._calls[number]
        operands = tuple(self._operand(number, operand) for operand in node.all_input_nodes)
        numbers = fx.node.map_aggregate(
            (node.args, node.kwargs), lambda leaf: None if isinstance(leaf, fx.Node) else leaf
        )
        return (str(node.target), repr(numbers), operands, _shape(node))

    def _operand(self, number: int, operand: fx.Node) -> Hashable:
        if operand in self._kinds:
            return (self._kinds[operand], _shape(operand))
        if operand in self.roles.again:
            return ("made again", _shape(operand))
        return number - self._numbers[operand]


def _shape(node: fx.Node) -> Hashable:
    return tuple((tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in tensors_of(node))


def _path(node: fx.Node) -> list[str]:
    """The names of the modules that a call is inside of, outermost first."""
    return (module_of(node) or [""])[-1].split(".")
