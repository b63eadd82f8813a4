"""Reshards of parameters that run together, or while the rank computes.

Programs of gradients begin where the gradients are made, some of them together, and are
awaited at the end of backward. Small parameters that are used one after the other are gathered
together, ``shard_bytes`` at once, where the first of them is used. With ``values_ahead`` that
begins, as the programs of other values do, after what was begun before it has ended, so that one is
on its way while its predecessor is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tensoropt_torch import _C
from tensoropt_torch.program.places import after_inputs
from tensoropt_torch.program.records import (
    BeginValues,
    Keep,
    Record,
    Reshard,
    ReshardGradients,
    ReshardParameter,
    TakeParameters,
    Value,
    taking,
)
from tensoropt_torch.program.reshards import (
    changes_gradient_alone,
    reduce_dtype,
    value_dtype,
    waits_in_queue,
)


def in_queue(
    records: Sequence[Record],
    first_edges: Mapping[_C.SpaceEdgeId, Value],
    overlap: bool,
    bucket_bytes: int,
    shard_bytes: int,
) -> list[Record]:
    """Reshards of parameters whose gradients, or values, wait for others get a queue; ``overlap``:
    so do all that communicate. ``first_edges``: where parameters are first resharded."""
    found = {
        record.edge: record
        for record in records
        if isinstance(record, Reshard)
        and record.edge in first_edges
        and waits_in_queue(record.programs, overlap)
    }
    edges = [edge for edge in first_edges if edge in found]
    if not edges:
        return list(records)
    sources = tuple(first_edges[edge] for edge in edges)
    results = tuple(Value() for _ in edges)
    slots = {edge: slot for slot, edge in enumerate(edges)}
    begun: list[Record] = [TakeParameters(results, sources, bucket_bytes, shard_bytes)]
    alike: dict[Any, list[Reshard]] = {}
    for edge in edges:
        if changes_gradient_alone(found[edge].programs):
            alike.setdefault(_of_gradient(found[edge].programs), []).append(found[edge])
    begun += [_together(members, results, slots) for members in alike.values()]
    others = dict(zip(sources, results, strict=True))
    rest = [taking(_queued(record, slots), others) for record in records]
    done = {value for record in begun[1:] for value in record.results}  # type: ignore[union-attr]
    return after_inputs([r for r in rest if getattr(r, "result", None) not in done], begun)


def _together(
    members: Sequence[Reshard], results: Sequence[Value], slots: Mapping[Any, int]
) -> ReshardGradients:
    places = tuple(slots[member.edge] for member in members)
    return ReshardGradients(
        tuple(member.result for member in members),
        tuple(results[place] for place in places),
        places,
        tuple(member.programs for member in members),
        tuple(member.gradient for member in members),
    )


def _queued(record: Record, slots: Mapping[Any, int]) -> Record:
    if not isinstance(record, Reshard) or record.edge not in slots:
        return record
    slot, programs = slots[record.edge], record.programs
    return ReshardParameter(record.result, record.source, slot, programs, record.gradient)


def with_values_begun(
    records: Sequence[Record], values_ahead: bool, shard_bytes: int
) -> list[Record]:
    """Says where values of the queue begin, and which backward makes again together."""
    gathers = [r for r in records if isinstance(r, ReshardParameter) and r.programs.forward.groups]
    before: dict[Value, BeginValues] = {}
    after: dict[Value, BeginValues] = {}
    numbers: dict[Value, int] = {}
    last: Value | None = None
    for number, members in enumerate(_buckets(gathers, shard_bytes)):
        if values_ahead and last is not None:
            after[last] = _begun(members)
        elif len(members) > 1:
            before[members[0].result] = _begun(members)
        numbers |= {member.result: number for member in members}
        last = members[0].result
    found: list[Record] = []
    for record in records:
        if isinstance(record, ReshardParameter):
            begun = before.get(record.result), record, after.get(record.result)
            found += [one for one in begun if one is not None]
        elif isinstance(record, Keep) and record.value in numbers:
            found.append(replace(record, bucket=numbers[record.value]))
        else:
            found.append(record)
    return found


def _begun(members: Sequence[ReshardParameter]) -> BeginValues:
    return BeginValues(
        tuple(member.source for member in members),
        tuple(member.slot for member in members),
        tuple(member.programs for member in members),
    )


def _of_gradient(programs: _C.EmittedReshard) -> tuple[Any, ...]:
    """What those have in common whose gradients one call reshards."""
    backward = programs.backward
    return tuple(backward.steps), tuple(backward.groups), reduce_dtype(programs)


def _bucket(programs: _C.EmittedReshard) -> tuple[int, torch.dtype, bool] | None:
    """What those have in common that are gathered together; None: it is by itself."""
    if programs.gathered_dim is None:
        return None
    (axes,) = programs.forward.groups
    return axes, value_dtype(programs), programs.held


def _buckets(
    reshards: Sequence[ReshardParameter], shard_bytes: int
) -> list[list[ReshardParameter]]:
    """Those that begin together, in the order of the first of each; a bucket is full when it
    has so many bytes."""
    buckets: list[list[ReshardParameter]] = []
    open_ones: dict[tuple[int, torch.dtype, bool], list[ReshardParameter]] = {}
    for reshard in reshards:
        key = _bucket(reshard.programs)
        together = None if key is None else open_ones.get(key)
        if together is None:
            together = []
            buckets.append(together)
            if key is not None:
                open_ones[key] = together
        together.append(reshard)
        full = sum(member.programs.value_bytes for member in together) >= shard_bytes
        if key is not None and full:
            del open_ones[key]
    return buckets
