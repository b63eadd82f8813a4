"""Measured peak memory of a training step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.collector import quick_collections
from tensoropt_torch.measure.machine.clock import SharedClock
from tensoropt_torch.measure.runs.budget import GoesOn, OutOfTimeError, always
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.operators import OPS

STEPS = 5
ENOUGH = 3  # steps with the least peak
CUDA_BLOCK_BYTES = 512


def measure_peak_bytes(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[[], Any],
    inputs: Any = (),
    goes_on: GoesOn = always,
) -> int:
    """The most bytes of tensors at one moment of ``step()`` on this process. Collective
    if a process group runs.

    That is what the module, the states of its optimizer and the ``inputs`` take, and
    what the device's allocator has handed out besides in a step: activations, gradients,
    temporaries inside kernels and collectives. Other memory of the process is not in it.
    Steps are run until one was not the first, then ``STEPS`` times, or until ``ENOUGH`` of
    them had the least peak on each rank, which counts: the threads of Gloo may hold the
    operands of a collective for a moment after it is over.

    Args:
        module, optimizer: what ``step`` trains; gradients are set to None before.
        step: a training step, which leaves gradients None.
        inputs: tensors that are there before ``step`` and that it uses, in any containers.
        goes_on: is asked before every step but the first, given how many have counted.

    Raises:
        OutOfTimeError: it did not go on until one has.
    """
    device = next(module.parameters()).device
    clock = SharedClock(device)
    optimizer.zero_grad()
    gc.collect()
    held = _held_bytes(module, optimizer, inputs, device)
    peaks: list[int] = []
    with quick_collections(), _counting(device) as (reset, peak):
        step()
        while len(peaks) < STEPS and not _are_enough(peaks, clock) and goes_on(len(peaks)):
            gc.collect()
            if dist.is_initialized():
                dist.barrier()
            reset()
            step()
            peaks.append(peak())
    if not peaks:
        raise OutOfTimeError
    return held + min(peaks)


def _are_enough(peaks: list[int], clock: SharedClock) -> bool:
    """Whether the least peak was there often enough on every rank. Collective, if there
    are so many."""
    if len(peaks) < ENOUGH:
        return False
    missing = ENOUGH - peaks.count(min(peaks))
    return clock.slowest([float(missing)])[0] <= 0


@contextmanager
def _counting(
    device: torch.device,
) -> Iterator[tuple[Callable[[], object], Callable[[], int]]]:
    """Inside, the functions that are yielded make peaks start from now, and give the
    most bytes since then above those that were allocated before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        yield (
            lambda: torch.cuda.reset_peak_memory_stats(device),
            lambda: torch.cuda.max_memory_allocated(device) - before,
        )
        return
    OPS.count_allocations(True)
    try:
        yield OPS.reset_peak_allocated, OPS.peak_allocated
    finally:
        OPS.count_allocations(False)


def _held_bytes(
    module: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any, device: torch.device
) -> int:
    """What is there between two steps; what tensors share counts once."""
    states = [value for state in optimizer.state.values() for value in state.values()]
    tables = module.tables.values() if isinstance(module, ParallelModule) else ()
    own = [*module.parameters(), *module.buffers(), *tables]
    values = [*own, *states, *pytree.tree_leaves(inputs)]
    sizes: dict[int, int] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            local = value.to_local() if isinstance(value, DTensor) else value
            storage = local.untyped_storage()
            if storage.device.type == device.type:
                # A batch may be a small part of a data set.
                seen = sizes.get(storage._cdata, 0)
                sizes[storage._cdata] = min(storage.nbytes(), seen + local.nbytes)
    if device.type == "cuda":
        return sum(-(-size // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES for size in sizes.values())
    return sum(sizes.values())
