"""The reshard of an edge on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tensoropt_torch import _C


@dataclass(frozen=True)
class Programs:
    """The reshard of an edge on one rank: encoded programs and names of process groups, of
    the value in forward and of its gradient in backward; and what is saved of it. The value is
    cast to ``dtype`` before, the gradient to ``reduce_dtype``, which may be ``is_bucketed``:
    summed together with others. A value that is gathered along ``gathered_dim``, to
    ``value_bytes``, may be gathered together with others. ``recomputes_source``: backward
    makes again what is resharded. ``held``: of the micro-batches of a step only the first
    reshards the value, the others find it."""

    forward: list[int]
    forward_groups: list[str]
    backward: list[int]
    backward_groups: list[str]
    saved: _C.Saved
    dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    is_bucketed: bool = False
    gathered_dim: int | None = None
    value_dtype: torch.dtype = torch.float32
    value_bytes: float = 0
    recomputes_source: bool = False
    held: bool = False

    @property
    def is_reshard(self) -> bool:
        """Whether the layout of the value or of its gradient changes."""
        return bool(self.forward or self.backward)

    def waits_in_queue(self, overlap: bool) -> bool:
        """Whether the reshard of a parameter is one of the queue (``overlap.py``)."""
        communicates = bool(self.forward_groups or self.backward_groups)
        shares = self.is_bucketed or self.gathered_dim is not None or self.held
        return shares or (overlap and communicates)

    @property
    def changes_gradient_alone(self) -> bool:
        """Whether the value is used as it is."""
        return not (self.forward or self.dtype or self.held)

    @property
    def arguments(self) -> tuple[list[int], list[str], list[int], list[str]]:
        """Those of ``ops.reshard`` after the tensor."""
        return self.forward, self.forward_groups, self.backward, self.backward_groups

    @property
    def dtypes(self) -> dict[str, Any]:
        """Its keywords."""
        given = {"dtype": self.dtype, "reduce_dtype": self.reduce_dtype}
        return {name: dtype for name, dtype in given.items() if dtype is not None}

    @staticmethod
    def of(reshard: _C.EmittedReshard, group_name: Callable[[int], str]) -> Programs:
        """What C++ says of an edge."""
        dtype, reduce_dtype = (getattr(torch, d) for d in (reshard.dtype, reshard.reduce_dtype))
        return Programs(
            reshard.forward.steps,
            [group_name(axes) for axes in reshard.forward.groups],
            reshard.backward.steps,
            [group_name(axes) for axes in reshard.backward.groups],
            reshard.saved,
            dtype if reshard.casts else None,
            reduce_dtype if reduce_dtype != dtype else None,
            is_bucketed=reshard.is_bucketed,
            gathered_dim=reshard.gathered_dim,
            value_dtype=dtype,
            value_bytes=reshard.value_bytes,
            recomputes_source=reshard.source_saved == _C.Saved.REMADE,
            held=reshard.held,
        )

    @property
    def is_remade(self) -> bool:
        """Whether backward makes the resharded value again."""
        return self.saved == _C.Saved.REMADE and bool(self.forward)

    @property
    def runs_again(self) -> bool:
        """Whether it does so together with what makes the value that is resharded."""
        return self.is_remade and self.recomputes_source
