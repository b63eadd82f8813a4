"""Checks that positions which are looked up, such as token ids, are in range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import getitem

import torch
from torch import fx

from tensoropt_torch.runtime import ops


@dataclass(frozen=True)
class Lookup:
    """One operand of a call on one rank, as ``RankProgram.call`` gives it: its numbers are
    ``low`` to ``high`` - 1, or ``ignored``; ranks that differ along ``axes`` have their own."""

    operand: int
    low: int
    high: int
    ignored: int | None
    axes: int


@dataclass
class LookupChecks:
    """Writes the checks of one graph.

    Where all ranks have the same numbers each throws by itself. Where they have parts, one
    exchange for all look-ups begins at the last of them, and is waited for at the end of the
    graph.
    """

    graph: fx.Graph
    _axes: int = 0
    _ranges: list[fx.Node] = field(default_factory=list)
    _bounds: list[tuple[int, int, str]] = field(default_factory=list)

    def check(self, node: fx.Node, lookup: Lookup, what: str) -> fx.Node:
        """What the call takes in place of the operand ``node``; ``what`` it is, for
        messages."""
        bounds = (lookup.low, lookup.high, lookup.ignored)
        library = torch.ops.tensoropt
        if not lookup.axes:
            self.graph.call_function(library.check_lookup.default, (node, *bounds, what))
            return node
        bounded = self.graph.call_function(library.bounded_lookup.default, (node, *bounds))
        self._axes |= lookup.axes
        self._ranges.append(self.graph.call_function(getitem, (bounded, 1)))
        self._bounds.append((lookup.low, lookup.high, what))
        return self.graph.call_function(getitem, (bounded, 0))

    def finish(self, group_name: Callable[[int], str]) -> None:
        """To be called where the graph ends."""
        if not self._ranges:
            return
        library = torch.ops.tensoropt
        with self.graph.inserting_after(self._ranges[-1]):
            agreement = self.graph.call_function(ops.lookup_agreement)
        with self.graph.inserting_after(agreement):
            self.graph.call_function(
                library.begin_lookup_agreement.default,
                (self._ranges, agreement, group_name(self._axes)),
            )
        lows, highs, whats = (list(column) for column in zip(*self._bounds, strict=True))
        self.graph.call_function(
            library.end_lookup_agreement.default, (self._ranges, agreement, lows, highs, whats)
        )
