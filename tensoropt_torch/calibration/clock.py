"""Times that all ranks agree on. Tests replace ``now``."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist


def now(device: torch.device) -> float:
    """Seconds of a steady clock, when the work of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def slowest(seconds: list[float], device: torch.device) -> list[float]:
    """The maximum over ranks of each number. Collective if a process group runs."""
    if not (dist.is_available() and dist.is_initialized()):
        return seconds
    # In float64: memory in bytes goes this way too.
    numbers = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    result: list[float] = numbers.tolist()
    return result
