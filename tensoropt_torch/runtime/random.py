"""Random operators on shards: equal shards draw equal numbers, different ones
different numbers."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch._ops import OpOverload


def stream_seed(step_seed: int, stream: tuple[int, ...]) -> int:
    """A seed for one operator and shard in one step, the same on all ranks."""
    text = f"{step_seed}:{stream}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def call_seeded(
    target: OpOverload, step_seed: int, stream: tuple[int, ...], *args: Any, **kwargs: Any
) -> Any:
    """Call ``target`` with the default generators seeded for ``stream``; their
    states are restored afterwards."""
    arguments = (*args, *kwargs.values())
    devices = {
        a.device if isinstance(a, torch.Tensor) else a
        for a in arguments
        if isinstance(a, (torch.Tensor, torch.device))
    }
    forked = [device for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(devices=forked):
        torch.manual_seed(stream_seed(step_seed, stream))
        return target(*args, **kwargs)
