"""Checks that positions which are looked up, such as token ids, are in range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.emit.forward_sums import ForwardSums


@dataclass
class LookupChecks:
    """Writes the checks of one graph.

    Where all ranks have the same numbers each throws by itself. Where they have parts, they add
    up where forward ends how many are out of range.
    """

    graph: fx.Graph
    _axes: int = 0
    _ranges: list[fx.Node] = field(default_factory=list)
    _bounds: list[tuple[int, int, str]] = field(default_factory=list)

    def check(self, node: fx.Node, lookup: _C.EmittedLookup, what: str) -> fx.Node:
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

    def add_to(self, sums: ForwardSums, group_name: Callable[[int], str]) -> None:
        """To be called where all calls have been written."""
        if not self._ranges:
            return
        group = group_name(self._axes)
        lows, highs, whats = (list(column) for column in zip(*self._bounds, strict=True))
        ranges = (self._ranges, lows, highs)
        library = torch.ops.tensoropt
        count = self.graph.call_function(library.out_of_range.default, ranges)

        def check(counts: list[fx.Node]) -> None:
            arguments: Any = (*counts, *ranges, whats, group)
            self.graph.call_function(library.check_lookups.default, arguments)

        sums.add(group, [count], check)
