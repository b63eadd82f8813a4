"""Measured peak memory of a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def measure_peak_bytes(
    module: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], Any]
) -> int:
    """Peak bytes of all tensors alive during ``step()`` on this process:
    parameters, gradients, optimizer state, activations, temporaries.

    On GPUs this is what the caching allocator counts, on the CPU what
    ``torch.distributed._tools.MemTracker`` counts (it follows every storage).
    """
    device = next(module.parameters()).device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return int(torch.cuda.max_memory_allocated(device))
    # Imports the compiler, which takes a second: not when the package is imported.
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(module, optimizer)
    with tracker:
        step()
    snapshot = tracker.get_tracker_snapshot("peak")
    return max(int(kinds["Total"]) for kinds in snapshot.values())
