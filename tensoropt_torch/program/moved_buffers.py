"""What of reshards is kept for backward; and buffers that batch normalisation moves where PyTorch
does not see it.

A training call moves its running statistics, but not the versions of their tensors. So what a
forward before it has saved of them is used by its backward as it is then: with the new numbers,
without an error. A plan does the same, whatever parts of the buffer it takes and whatever runs
again; but what runs again gives the values of forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.passes import BUFFER, gives_views
from tensoropt_torch.program.records import (
    Call,
    Keep,
    Record,
    Reshard,
    ReshardParameter,
    Value,
)
from tensoropt_torch.program.reshards import is_remade, runs_again

MOST_CHANNELS = 1 << 16  # more is no running statistic, and is not copied in every step


def moved_inputs(captured: CapturedModel, inputs: Mapping[fx.Node, Value]) -> set[Value]:
    """Those of the rank, by the placeholders of the captured graph, that may be such buffers."""
    sources = [s for s in captured.sources if s.kind == "constant" and not s.is_folded]
    return {inputs[s.placeholder] for s in sources if may_be_moved(s.placeholder)}


def with_values_kept(records: Sequence[Record], moved: set[Value]) -> list[Record]:
    """Says what backward makes again of reshards, and takes from buffers; ``moved`` are those, in
    place of which others may take copies, which are not moved."""
    moved = set(moved)
    found: list[Record] = []
    for record in records:
        if isinstance(record, Call) and record.node is not None:
            record = _called(record, moved)
        found.append(record)
        if isinstance(record, Reshard | ReshardParameter):
            programs = record.programs
            is_moved = record.source in moved and bool(programs.forward.steps)
            if is_moved:
                moved.add(record.result)
            if is_moved or (is_remade(programs) and not runs_again(programs)):
                found.append(Keep(record.result, record.source, programs))
    return found


def _called(record: Call, moved: set[Value]) -> Call:
    """The call with the buffers that it runs again with; what it gives may be a view of one."""
    among = tuple(dict.fromkeys(value for value in record.operands if value in moved))
    if among and gives_views(record.function):
        moved.add(record.result)
    return replace(record, moved=among) if among and record.runs_again else record


def may_be_moved(buffer: fx.Node) -> bool:
    """Whether a buffer of the module has the shape of running statistics. Which graph of the
    module moves it, this one does not know."""
    value = buffer.meta.get("val")
    if not buffer.meta.get(BUFFER, False) or not isinstance(value, torch.Tensor):
        return False
    return value.dim() == 1 and value.is_floating_point() and value.numel() <= MOST_CHANNELS
