"""Tensor layouts of plans as ``DTensor`` writes them."""

from __future__ import annotations

from torch.distributed.tensor import Partial, Placement, Replicate, Shard


def placements_of(layout: str) -> tuple[Placement, ...]:
    """Those of a tensor layout, ``S0,P,R``, on the base mesh; one of no axes has one."""
    return tuple(map(_placement, (layout or "R").split(",")))


def _placement(part: str) -> Placement:
    if part[0] == "S":
        return Shard(int(part[1:]))
    return Partial() if part == "P" else Replicate()
