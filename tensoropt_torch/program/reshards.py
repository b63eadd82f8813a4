"""What is asked of the reshard of an edge on one rank.

It has one form: records carry it as C++ gives it (``csrc/emit/rank_program.h``), and writers hand
its integers to operators, with the names of process groups in place of axis sets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensoropt_torch import _C

GroupName = Callable[[int], str]
Program = tuple[list[int], list[str]]  # encoded, and its process groups


def is_reshard(reshard: _C.EmittedReshard) -> bool:
    """Whether the layout of the value or of its gradient changes."""
    return bool(reshard.forward.steps or reshard.backward.steps)


def waits_in_queue(reshard: _C.EmittedReshard, overlap: bool) -> bool:
    """Whether the reshard of a parameter is one of the queue (``overlap.py``)."""
    communicates = bool(reshard.forward.groups or reshard.backward.groups)
    shares = reshard.is_bucketed or reshard.gathered_dim is not None or reshard.held
    return shares or (overlap and communicates)


def changes_gradient_alone(reshard: _C.EmittedReshard) -> bool:
    """Whether the value is used as it is."""
    return not (reshard.forward.steps or reshard.casts or reshard.held)


def is_remade(reshard: _C.EmittedReshard) -> bool:
    """Whether backward makes the resharded value again."""
    return reshard.saved == _C.Saved.REMADE and bool(reshard.forward.steps)


def runs_again(reshard: _C.EmittedReshard) -> bool:
    """Whether it does so together with what makes the value that is resharded."""
    return is_remade(reshard) and reshard.source_saved == _C.Saved.REMADE


def value_dtype(reshard: _C.EmittedReshard) -> torch.dtype:
    """The dtype of the value, which is cast to it before if it ``casts``."""
    found: torch.dtype = getattr(torch, reshard.dtype)
    return found


def reduce_dtype(reshard: _C.EmittedReshard) -> torch.dtype | None:
    """The dtype to which the gradient is cast before; None: it has that of the value."""
    if reshard.reduce_dtype == reshard.dtype:
        return None
    found: torch.dtype = getattr(torch, reshard.reduce_dtype)
    return found


def dtypes(reshard: _C.EmittedReshard) -> dict[str, Any]:
    """The keywords of ``ops.reshard``."""
    own = value_dtype(reshard) if reshard.casts else None
    given = {"dtype": own, "reduce_dtype": reduce_dtype(reshard)}
    return {name: dtype for name, dtype in given.items() if dtype is not None}


def named(program: _C.EncodedProgram, group_name: GroupName) -> Program:
    """A program as operators take it."""
    return program.steps, [group_name(axes) for axes in program.groups]
