"""Workspaces of oneDNN's kernels, measured on small batches.

A call runs with operands of small batches, and what PyTorch's allocator is asked for
meanwhile is taken from its profiler. Workspaces are nearly linear in the size of a
batch, and in the number of steps of a recurrent layer, so few samples give the figure
for any size; small sizes are measured as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.profiler import profile, record_function

_MARK = "tensoropt workspace"
_ATEN = torch.ops.aten

Sizes = tuple[int, ...]
# Bytes of the workspace, then those of outputs whose sizes only oneDNN knows.
Figures = tuple[int, ...]


@dataclass(frozen=True)
class _Operand:
    """A tensor argument, without values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def real(self, sizes: Mapping[int, int]) -> torch.Tensor:
        """Zeros, with other sizes of some dims."""
        shape = [sizes.get(dim, size) for dim, size in enumerate(self.shape)]
        order = sorted(range(len(shape)), key=lambda dim: (-self.stride[dim], dim))
        dense = torch.zeros([shape[dim] for dim in order], dtype=self.dtype)
        return dense.permute([order.index(dim) for dim in range(len(shape))])


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel: equal calls take equal workspaces."""

    target: OpOverload = field(compare=False)
    key: str
    arguments: tuple[Any, ...] = field(compare=False, repr=False)

    @staticmethod
    def of(func: OpOverload, args: Sequence[Any]) -> KernelCall:
        """The call, tensors by shape, strides and dtype."""
        arguments = tuple(_frozen(value) for value in args)
        return KernelCall(func, f"{func} {arguments}", arguments)


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Operand(tuple(value.shape), tuple(value.stride()), value.dtype)
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class _Kernel:
    """How a kernel is measured.

    Attributes:
        growing: for each size in which the workspace is linear, the dims of
            arguments that have it, as (argument, dim).
        samples: two such sizes that are measured for all larger ones.
        prepare: from real arguments to the call without arguments.
        saved: outputs whose sizes only oneDNN knows.
    """

    growing: tuple[tuple[tuple[int, int], ...], ...]
    samples: tuple[int, int]
    prepare: Callable[[OpOverload, list[Any]], Callable[[], Any]]
    saved: tuple[int, ...] = ()

    def sizes(self, call: KernelCall) -> Sizes:
        """The growing sizes of a call."""
        return tuple(call.arguments[dims[0][0]].shape[dims[0][1]] for dims in self.growing)

    def sampled(self, size: int) -> tuple[int, ...]:
        """The sizes to measure for this one."""
        return (size,) if size <= self.samples[1] else self.samples

    def started(self, call: KernelCall, sizes: Sizes) -> Callable[[], Any]:
        """The call with these sizes, ready to run."""
        changes: dict[int, dict[int, int]] = {}
        for dims, size in zip(self.growing, sizes, strict=True):
            for argument, dim in dims:
                changes.setdefault(argument, {})[dim] = size
        values = [
            value.real(changes.get(index, {})) if isinstance(value, _Operand) else value
            for index, value in enumerate(call.arguments)
        ]
        return self.prepare(call.target, values)


def _plain(target: OpOverload, values: list[Any]) -> Callable[[], Any]:
    return lambda: target(*values)


def _after_forward(target: OpOverload, values: list[Any]) -> Callable[[], Any]:
    """Backward of a recurrent layer reads what forward wrote to its workspace."""
    operands, (reverse, mode, units, layers, biases, train, both, sizes, batch_first) = (
        values[:7],
        values[13:22],
    )
    *_, workspace = _ATEN.mkldnn_rnn_layer(
        *operands, reverse, sizes, mode, units, layers, biases, both, batch_first, train
    )
    return lambda: target(*values[:22], workspace)


_STEPS, _SAMPLES = (0, 0), (0, 1)  # of the input of a recurrent layer
MEASURED: Mapping[str, _Kernel] = {
    "aten::convolution": _Kernel((((0, 0),),), (8, 16), _plain),
    "aten::convolution_backward": _Kernel((((0, 0), (1, 0)),), (8, 16), _plain),
    "aten::mkldnn_rnn_layer": _Kernel(
        ((_STEPS,), (_SAMPLES, (5, 0), (6, 0))), (16, 32), _plain, saved=(3,)
    ),
    "aten::mkldnn_rnn_layer_backward": _Kernel(
        (
            (_STEPS, (7, 0), (10, 0)),
            (_SAMPLES, (5, 0), (6, 0), (7, 1), (8, 0), (9, 0), (10, 1), (11, 0), (12, 0)),
        ),
        (16, 32),
        _after_forward,
    ),
}


def measured_bytes(calls: Iterable[KernelCall]) -> dict[KernelCall, Figures]:
    """The figures of calls of kernels in ``MEASURED``."""
    ordered = sorted(calls, key=lambda call: call.key)
    jobs = []
    for call in ordered:
        kernel = _kernel_of(call)
        for sizes in itertools.product(*map(kernel.sampled, kernel.sizes(call))):
            jobs.append((call, sizes))
    samples = dict(zip(jobs, _run(jobs), strict=True))
    return {call: _extended(call, samples) for call in ordered}


def _kernel_of(call: KernelCall) -> _Kernel:
    return MEASURED[call.target._schema.name]


def _extended(call: KernelCall, samples: Mapping[tuple[KernelCall, Sizes], Figures]) -> Figures:
    """The figures at the call's own sizes, linear in each of them."""
    kernel = _kernel_of(call)
    weighted = []
    for size in kernel.sizes(call):
        low, *high = kernel.sampled(size)
        share = (size - low) / (high[0] - low) if high else 0.0
        weighted.append([(low, 1 - share), *((h, share) for h in high)])
    totals = [0.0] * (1 + len(kernel.saved))
    for corner in itertools.product(*weighted):
        weight = math.prod(w for _, w in corner)
        figures = samples[call, tuple(size for size, _ in corner)]
        totals = [t + weight * f for t, f in zip(totals, figures, strict=True)]
    return tuple(max(0, round(total)) for total in totals)


def _run(jobs: Sequence[tuple[KernelCall, Sizes]]) -> list[Figures]:
    """What each of the calls allocates at these sizes."""
    if not jobs:
        return []
    saved: list[list[int]] = []
    with profile(profile_memory=True) as run:
        for call, sizes in jobs:
            kernel = _kernel_of(call)
            start = kernel.started(call, sizes)
            with record_function(_MARK):
                results = start()
            saved.append([results[index].untyped_storage().nbytes() for index in kernel.saved])
            del results  # not freed by the next assignment, which is measured
    events = sorted(run.kineto_results.events(), key=lambda event: event.start_ns())
    spans = [(e.start_ns(), e.end_ns()) for e in events if e.name() == _MARK]
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    return [
        (_above_end([n for at, n in changes if start <= at <= end]), *sizes)
        for (start, end), sizes in zip(spans, saved, strict=True)
    ]


def _above_end(changes: Iterable[int]) -> int:
    """How far the most that was allocated exceeds what is left at the end."""
    levels = list(itertools.accumulate(changes, initial=0))
    return max(levels) - levels[-1]
