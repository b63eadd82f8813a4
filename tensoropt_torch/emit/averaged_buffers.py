"""Buffers that each rank changes by its own data: running statistics of groups of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.emit.forward_sums import Buffers, ForwardSums, write_sums
from tensoropt_torch.plan.local_form import LocalForm


@dataclass
class BufferAverages:
    """Writes into a graph that such buffers become the means over ranks: all of them at once,
    where forward ends, or before a call that reads one of them.

    Attributes:
        sizes: of the mesh axes.
        axes: of all ranks that change some buffer by themselves.
    """

    graph: fx.Graph
    sizes: Sequence[int]
    axes: int
    group_name: Callable[[int], str]
    _pending: dict[fx.Node, tuple[fx.Node, _C.AveragedBuffer]] = field(default_factory=dict)

    def before(
        self, operands: Sequence[fx.Node], averaged: Sequence[_C.AveragedBuffer] = ()
    ) -> None:
        """To be called before what takes these operands (of the captured graph) is written: it
        reads whole what the ranks have changed, unless it changes the same entries of some,
        which are ``averaged`` then."""
        changed = {operands[buffer.operand]: buffer.own for buffer in averaged}
        for operand in operands:
            if operand in self._pending and self._pending[operand][1].own != changed.get(operand):
                self.write()

    def after(
        self, operands: Sequence[fx.Node], emitted: Sequence[fx.Node], form: LocalForm
    ) -> None:
        """A call has changed buffers, which are called ``emitted`` in the graph."""
        for buffer in form.averaged:
            self._pending[operands[buffer.operand]] = (emitted[buffer.operand], buffer)

    def write(self) -> None:
        """Everything that has been changed so far is averaged now."""
        if self._pending:
            write_sums(self.graph, self.group_name(self.axes), (), self._take())

    def add_to(self, sums: ForwardSums) -> None:
        """Everything that has been changed so far is averaged where forward ends."""
        if self._pending:
            sums.average(self.group_name(self.axes), self._take())

    def _take(self) -> Buffers:
        nodes, buffers = zip(*self._pending.values(), strict=True)
        begins, lengths = zip(*(buffer.own for buffer in buffers), strict=True)
        ranks = self._count(self.axes)
        self._pending.clear()
        return nodes, begins, lengths, [ranks // self._count(buffer.joined) for buffer in buffers]

    def _count(self, axes: int) -> int:
        return math.prod(size for axis, size in enumerate(self.sizes) if axes >> axis & 1)


def averaged_axes(forms: Iterable[LocalForm]) -> int:
    """Of all buffers that these calls change."""
    axes = 0
    for form in forms:
        for buffer in form.averaged:
            axes |= buffer.axes
    return axes
