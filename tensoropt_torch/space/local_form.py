"""What differs in the call of an operator on one rank, as C++ says it.

::

    form = LocalForm.of(program.call(graph_node))
    args, kwargs = local_arguments(node, form.arguments, operands, device)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch import _C
from tensoropt_torch.frontend.lowering import named_arguments

_Operand = TypeVar("_Operand")


@dataclass(frozen=True)
class LocalForm:
    """What differs in the call of an operator on one rank (``csrc/rules/rule.h``).

    Attributes:
        target: another operator that is called instead; empty: the same one.
        operands: the arguments of the whole call that ``target`` takes, all without names.
        arguments: literals of the same operator that are others, by name.
        extra: what ``target`` takes after the operands.
        groups: axis sets whose process groups ``target`` takes last, 0 for none.
        halos: what operand 0 borrows from its neighbours first.
        scale: what the result is multiplied with.
        random: whether the operator is known to draw random numbers.
        averaged: buffers that it changes, see ``program/averaged_buffers.py``.
        shard_index: ranks with equal ones draw equal numbers.
        lookups: operands whose numbers are checked first, see ``program/lookups.py``.
        runs_again: in backward, instead of keeping what it makes.
    """

    target: str
    operands: Sequence[str]
    arguments: Mapping[str, Any]
    extra: Sequence[Any]
    groups: Sequence[int]
    halos: Sequence[_C.Halo]
    scale: float
    random: bool
    averaged: Sequence[_C.AveragedBuffer] = ()
    shard_index: int = 0
    lookups: Sequence[_C.EmittedLookup] = ()
    runs_again: bool = False

    @staticmethod
    def of(call: _C.EmittedCall | _C.LocalCall) -> LocalForm:
        """What ``RankProgram.call`` or ``SearchSpace.local_call`` gives."""
        form = call.form
        own = (
            (call.shard_index, call.lookups, call.saved == _C.Saved.REMADE)
            if isinstance(call, _C.EmittedCall)
            else ()
        )
        return LocalForm(
            form.target,
            form.operands,
            form.arguments,
            form.extra,
            form.groups,
            form.halos,
            form.scale,
            call.random,
            form.averaged,
            *own,
        )

    @property
    def axis_sets(self) -> set[int]:
        """The axis sets whose process groups the call needs."""
        return {*self.groups, *(halo.axes for halo in self.halos)} - {0}


def local_arguments(
    node: fx.Node,
    replaced: Mapping[str, Any],
    operands: Sequence[_Operand],
    device: torch.device,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the call of ``node`` on one rank: its operands there, literals
    replaced by name, and everything made on ``device``."""
    assert isinstance(node.target, OpOverload)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    keywords = {argument.name for argument in node.target._schema.arguments if argument.kwarg_only}
    keywords.add("memory_format")  # which functions and methods of PyTorch take by name alone
    rest = iter(operands)
    for name, value in named_arguments(node):
        value = _with_operands(replaced.get(name, value), rest)
        if isinstance(value, torch.device):
            value = device
        if name in keywords:
            kwargs[name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _with_operands(value: Any, operands: Iterator[_Operand]) -> Any:
    """The argument with the next operands in place of its nodes."""
    if isinstance(value, fx.Node):
        return next(operands)
    if isinstance(value, (list, tuple)):
        return type(value)([_with_operands(item, operands) for item in value])
    return value


def target_operands(
    node: fx.Node, names: Sequence[str], operands: Sequence[_Operand]
) -> list[_Operand | None]:
    """The tensors for another target: those of the arguments ``names``, None where
    the call has none; all operands if there are no names."""
    if not names:
        return list(operands)
    rest = iter(operands)
    by_name = {
        name: next(rest) for name, value in named_arguments(node) if isinstance(value, fx.Node)
    }
    return [by_name.get(name) for name in names]


def operator_named(name: str) -> Any:
    """What ``torch.ops`` has under a name such as ``tensoropt.reshard.default``, or None."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
