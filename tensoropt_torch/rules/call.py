"""One call of an operator, as data for the checker."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.space.local_form import operator_named

# Splitting changes the order of sums.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Parts that must be equal went through kernels of other shapes or alignment.
REPLICA_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6}


class Checks(enum.Enum):
    """What of a call can be compared with the whole operator."""

    VALUES = enum.auto()
    REPLICAS = enum.auto()  # values are random, but replicas must be equal
    SHAPES = enum.auto()  # values mean nothing
    FORWARD = enum.auto()  # autograd refuses the operator


@dataclass(frozen=True)
class OpCall:
    """A call with real tensors. ``name`` is for messages; only the first ``used``
    outputs have users, if that is given."""

    overload: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    tolerance: float = TOLERANCES[torch.float64]
    replica_tolerance: float = REPLICA_TOLERANCES[torch.float64]
    checks: Checks = Checks.VALUES
    has_gradients: bool = True  # whether autograd knows the operator
    used: int | None = None


@dataclass(frozen=True)
class RankCall:
    """One rank's call of an operator that needs the other ranks."""

    operands: list[Any]  # tensors, or None for an absent one
    extra: list[Any]
    groups: list[list[int]]  # ranks of each process group


RankResult = torch.Tensor | list[torch.Tensor]

# What an operator that runs collectives computes, for all ranks at once.
Reference = Callable[[Sequence[RankCall]], Sequence[RankResult]]


def overload_of(operator: Any) -> OpOverload:
    """The overload of ``"mylib::op"``, ``"mylib.op.default"``, ``torch.ops.mylib.op``,
    or what ``torch.library.custom_op`` returned.

    Raises:
        TensorOptError: there is no such operator.
    """
    operator = getattr(operator, "_opoverload", operator)
    name = operator.replace("::", ".") if isinstance(operator, str) else ""
    found = operator_named(name) if name else operator
    if isinstance(found, OpOverloadPacket):
        found = getattr(found, "default", None)
    if not isinstance(found, OpOverload):
        raise TensorOptError(
            f"there is no operator {operator!r}; define it with torch.library.custom_op first, and "
            "give its name, e.g. 'mylib::scaled_add'"
        )
    return found
