"""Buffers that each rank changes by its own data: running statistics of groups of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from tensoropt_torch.plan.local_form import AveragedBuffer, LocalForm
from tensoropt_torch.runtime import ops


@dataclass
class BufferAverages:
    """Writes into a graph that such buffers become the means over ranks: all of them at once,
    by an exchange that begins where the last of them has changed and is waited for where the
    graph ends, or before a call that reads one of them.

    Attributes:
        sizes: of the mesh axes.
        axes: of all ranks that change some buffer by themselves.
    """

    graph: fx.Graph
    sizes: Sequence[int]
    axes: int
    group_name: Callable[[int], str]
    _pending: dict[fx.Node, tuple[fx.Node, AveragedBuffer]] = field(default_factory=dict)
    _last: fx.Node | None = None  # of the calls that changed them

    def before(self, operands: Sequence[fx.Node], form: LocalForm) -> None:
        """To be called before the call with these operands (of the captured graph) is written:
        it reads whole what the ranks have changed, unless it changes the same entries."""
        changed = {operands[buffer.operand]: buffer.own for buffer in form.averaged}
        for operand in operands:
            if operand in self._pending and self._pending[operand][1].own != changed.get(operand):
                self.write()

    def after(
        self,
        call: fx.Node,
        operands: Sequence[fx.Node],
        emitted: Sequence[fx.Node],
        form: LocalForm,
    ) -> None:
        """The call, written as ``call``, has changed buffers, which are called ``emitted`` in
        the graph."""
        for buffer in form.averaged:
            self._pending[operands[buffer.operand]] = (emitted[buffer.operand], buffer)
            self._last = call

    def write(self) -> None:
        """Everything that has been changed so far."""
        if not self._pending:
            return
        assert self._last is not None
        nodes, buffers = zip(*self._pending.values(), strict=True)
        begins, lengths = zip(*(buffer.own for buffer in buffers), strict=True)
        ranks = self._count(self.axes)
        holders = [ranks // self._count(buffer.joined) for buffer in buffers]
        library = torch.ops.tensoropt
        with self.graph.inserting_after(self._last):
            average = self.graph.call_function(ops.buffer_average)
        with self.graph.inserting_after(average):
            shares = ([*begins], [*lengths], holders, self.group_name(self.axes))
            self.graph.call_function(library.begin_average.default, ([*nodes], average, *shares))
        self.graph.call_function(library.end_average.default, ([*nodes], average))
        self._pending.clear()

    def _count(self, axes: int) -> int:
        return math.prod(size for axis, size in enumerate(self.sizes) if axes >> axis & 1)


def averaged_axes(forms: Iterable[LocalForm]) -> int:
    """Of all buffers that these calls change."""
    axes = 0
    for form in forms:
        for buffer in form.averaged:
            axes |= buffer.axes
    return axes
