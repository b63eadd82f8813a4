"""What the ranks add up where forward ends, in one collective for each group: losses, how many
look-ups are out of range, and buffers that each rank has changed by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch import _C
from tensoropt_torch.operators import OPS
from tensoropt_torch.program.places import before_sums
from tensoropt_torch.program.records import (
    Buffers,
    Call,
    Output,
    Record,
    Reduce,
    Reshard,
    SumOf,
    Value,
    given,
    taken,
    taking,
    values_in,
)
from tensoropt_torch.program.reshards import GroupName, dtypes, runs_again
from tensoropt_torch.runtime import ops
from tensoropt_torch.step_code import StepKind, steps_of

# Means of losses over ranks, which otherwise have a collective of their own.
_MEANS = frozenset(
    {
        OPS.cross_entropy_sharded.default,
        OPS.cross_entropy_vocab.default,
        OPS.nll_loss_sharded.default,
    }
)
# Otherwise a sum may need the range of the dtype, or more digits than a mean.
_EXACT = (torch.float32, torch.float64)


def with_loss_sums(records: Sequence[Record], group_name: GroupName) -> list[Record]:
    """Losses are among what is summed where forward ends. A loss is an output that an all-reduce
    makes of a scalar, or a mean over ranks; nothing else reads it."""
    *body, output = records
    assert isinstance(output, Output)
    scalars = _scalars(output)
    if not scalars:
        return list(records)
    makers = {value: record for record in body for value in given(record) if value in scalars}
    read = {value for record in body for value in taken(record) if value in scalars}
    losses = _Losses(group_name, {}, [], {})
    for value, dtype in scalars.items():
        record = makers[value]
        if value in read:
            continue
        if isinstance(record, Reshard):
            losses.add_sum(record)
        elif isinstance(record, Call) and record.function in _MEANS and not record.runs_again:
            losses.add_mean(record, dtype)
    changed = (_instead(record, losses.instead) for record in body)
    kept = [record for record in changed if record is not None]
    return before_sums([*kept, taking(output, losses.outputs)], losses.added)


def _instead(record: Record, others: Mapping[Value, Record | None]) -> Record | None:
    return others.get(record.result, record) if isinstance(record, Reshard | Call) else record


def _scalars(output: Output) -> dict[Value, torch.dtype]:
    """The outputs that may be losses."""
    olds: list[fx.Node] = []
    fx.map_arg(output.node.args[0], olds.append)
    found = {}
    for old, value in zip(olds, values_in(output.values), strict=True):
        whole: torch.Tensor = old.meta["val"]
        if not whole.dim() and whole.dtype in _EXACT:
            found[value] = whole.dtype
    return found


def _is_all_reduce(program: _C.EncodedProgram) -> bool:
    """Whether this one step of equal parts is all of it."""
    kinds = [(step.kind, step.is_uneven) for step in steps_of(program.steps, program.groups)]
    return kinds == [(StepKind.ALL_REDUCE, False)]


@dataclass
class _Losses:
    """Changes of records: those ``instead`` of the one that gives a value, those that are
    ``added``, and ``outputs`` that are others."""

    group_name: GroupName
    instead: dict[Value, Record | None]
    added: list[Record]
    outputs: dict[Value, Value]

    def add_sum(self, record: Reshard) -> None:
        programs = record.programs
        if (
            runs_again(programs)
            or not _is_all_reduce(programs.forward)
            or programs.backward.steps
            or dtypes(programs)
        ):
            return
        (axes,) = programs.forward.groups
        group = self.group_name(axes)
        whole = Value()
        self.instead[record.result] = None
        self.added += [
            Reduce((whole,), (record.source,), Buffers(), group, at_end=True),
            SumOf(record.result, whole, record.source, group),
        ]

    def add_mean(self, record: Call, dtype: torch.dtype) -> None:
        arguments = _named_arguments(record)
        group = arguments["count_group"]
        if not group or arguments.get("reduction", ops.MEAN) != ops.MEAN:
            return
        target, weight = arguments["target"], arguments.get("weight")
        divided = (target, weight, arguments["ignore_index"])
        divisor = Call(Value(), OPS.valid_divisor.default, divided)
        self.instead[record.result] = _summed(record, arguments)
        own = _cast(record.result, torch.float64)
        share, count, whole = Value(), Value(), Value()
        mean = Call(Value(), torch.ops.aten.div.Tensor, (whole, count))
        given_mean = _cast(mean.result, dtype)
        shares = own.result, divisor.result
        self.added += [
            divisor,
            own,
            Reduce((share, count), shares, Buffers(), group, at_end=True),
            SumOf(whole, share, own.result, group),
            mean,
            given_mean,
        ]
        self.outputs[record.result] = given_mean.result


def _summed(record: Call, arguments: Mapping[str, Any]) -> Call:
    """The sum of the rank's losses, of which the call gives the mean over ranks."""
    if record.function is OPS.nll_loss_sharded.default:
        operands = (arguments[name] for name in ("log_probs", "target", "weight"))
        args: tuple[Any, ...] = (*operands, ops.SUM, arguments["ignore_index"])
        return replace(record, function=torch.ops.aten.nll_loss_nd.default, args=args, groups=())
    args = tuple({**arguments, "reduction": ops.SUM, "count_group": ""}.values())
    groups = tuple(group for group in record.groups if group in args)
    return replace(record, args=args, groups=groups)


def _cast(value: Value, dtype: torch.dtype) -> Call:
    return Call(Value(), torch.ops.aten._to_copy.default, (value,), {"dtype": dtype})


def _named_arguments(record: Call) -> dict[str, Any]:
    """The arguments of a call by name, in the order of the schema."""
    assert isinstance(record.function, OpOverload) and not record.kwargs
    names: Sequence[str] = [argument.name for argument in record.function._schema.arguments]
    return dict(zip(names, record.args, strict=True))


def with_sums_joined(records: Sequence[Record]) -> list[Record]:
    """What a group sums where forward ends is one collective. What reads the sums follows it."""
    if not any(isinstance(record, Reduce) and record.at_end for record in records):
        return list(records)
    *body, output = records
    groups: dict[str, list[Reduce]] = {}
    followers: dict[str, list[Record]] = {}
    group_of: dict[Value, str] = {}
    found: list[Record] = []
    for record in body:
        if isinstance(record, Reduce) and record.at_end:
            groups.setdefault(record.group, []).append(record)
            group_of |= dict.fromkeys(record.results, record.group)
            continue
        group = next((group_of[value] for value in taken(record) if value in group_of), None)
        if group is None:
            found.append(record)
        else:
            followers.setdefault(group, []).append(record)
            group_of |= dict.fromkeys(given(record), group)
    for group, reduces in groups.items():
        found += [_joined(reduces), *followers.get(group, ())]
    return [*found, output]


def _joined(reduces: Sequence[Reduce]) -> Reduce:
    results = tuple(value for one in reduces for value in one.results)
    shares = tuple(value for one in reduces for value in one.shares)
    buffers = next((one.buffers for one in reduces if one.buffers.values), Buffers())
    return Reduce(results, shares, buffers, reduces[0].group, at_end=True)
