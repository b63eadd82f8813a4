"""Buffers that each rank changes by its own data: running statistics of groups of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.frontend.lowering import tensor_operands
from tensoropt_torch.program.records import (
    Buffers,
    Operation,
    Output,
    Record,
    Reduce,
    Reshard,
    Value,
)
from tensoropt_torch.space.local_form import LocalForm


def with_averages(
    records: Sequence[Record], sizes: Sequence[int], axes: int, group_name: Callable[[int], str]
) -> list[Record]:
    """Such buffers become the means over ranks: all of them at once, where forward ends, or before
    what reads one of them.

    Args:
        sizes: of the mesh axes.
        axes: of all ranks that change some buffer by themselves; 0: none does.
    """
    if not axes:
        return list(records)
    averages = _Averages(sizes, axes, group_name(axes))
    for record in records:
        if isinstance(record, Operation):
            averages.operation(record)
        elif isinstance(record, Output):
            averages.before(record.node, record.node.all_input_nodes)
            averages.write(len(averages.records), at_end=True)
            averages.records.append(record)
        else:
            averages.records.append(record)
    return averages.records


@dataclass
class _Averages:
    sizes: Sequence[int]
    axes: int
    group: str
    records: list[Record] = field(default_factory=list)
    _pending: dict[fx.Node, tuple[Value, _C.AveragedBuffer]] = field(default_factory=dict)

    def operation(self, record: Operation) -> None:
        operands, averaged = tensor_operands(record.node), record.form.averaged
        self.before(record.node, operands, averaged)
        self.records.append(record)
        for buffer in averaged:
            self._pending[operands[buffer.operand]] = record.operands[buffer.operand], buffer

    def before(
        self,
        node: fx.Node,
        operands: Sequence[fx.Node],
        averaged: Sequence[_C.AveragedBuffer] = (),
    ) -> None:
        """What takes these operands of the captured graph reads whole what the ranks have
        changed, unless it changes the same entries of some, which are ``averaged`` then."""
        changed = {operands[buffer.operand]: buffer.own for buffer in averaged}
        for operand in operands:
            if operand in self._pending and self._pending[operand][1].own != changed.get(operand):
                self.write(self._begin_of(node))

    def _begin_of(self, node: fx.Node) -> int:
        """Where the records are of what reshards the operands of a node, which come last."""
        place = len(self.records)
        while place > 0:
            record = self.records[place - 1]
            if not isinstance(record, Reshard) or record.consumer is not node:
                break
            place -= 1
        return place

    def write(self, place: int, at_end: bool = False) -> None:
        """Everything that has been changed so far is averaged there."""
        if not self._pending:
            return
        values, buffers = zip(*self._pending.values(), strict=True)
        begins, lengths = zip(*(buffer.own for buffer in buffers), strict=True)
        ranks = self._count(self.axes)
        means = tuple(ranks // self._count(buffer.joined) for buffer in buffers)
        self._pending.clear()
        averaged = Buffers(values, begins, lengths, means)
        self.records.insert(place, Reduce((), (), averaged, self.group, at_end))

    def _count(self, axes: int) -> int:
        return math.prod(size for axis, size in enumerate(self.sizes) if axes >> axis & 1)


def averaged_axes(forms: Iterable[LocalForm]) -> int:
    """The mesh axes over which buffers are averaged that these calls change."""
    axes = 0
    for form in forms:
        for buffer in form.averaged:
            axes |= buffer.axes
    return axes
