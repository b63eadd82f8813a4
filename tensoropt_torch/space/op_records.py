"""Measured calls of operators, as plans and files keep them, for the C++ core."""

from __future__ import annotations

from tensoropt_torch import _C
from tensoropt_torch.space.settings import OpRecord, WorkRecord


def work_record(work: _C.OpWork) -> WorkRecord:
    """What the core says that one rank computes, as it is kept."""
    return (
        work.dtype,
        work.forward_flops,
        work.backward_flops,
        work.bytes,
        work.launches,
        work.backward,
        work.view,
    )


def work_of(record: WorkRecord) -> _C.OpWork:
    """The other way round."""
    dtype, forward_flops, backward_flops, count, launches, backward, view = record
    return _C.OpWork(
        dtype=dtype,
        forward_flops=forward_flops,
        backward_flops=backward_flops,
        bytes=count,
        launches=launches,
        backward=backward,
        view=view,
    )


def sample_of(record: OpRecord) -> _C.OpSample:
    """A measured call for the core."""
    key, family, work, forward_s, backward_s = record
    return _C.OpSample(
        key=key, family=family, work=work_of(work), forward_s=forward_s, backward_s=backward_s
    )
