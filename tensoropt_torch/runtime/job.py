"""The job that runs: its process group and this process's device."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tensoropt_torch.errors import TensorOptError


def device_of_group() -> torch.device:
    """Where this process computes."""
    if "nccl" in dist.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def check_group(function: str) -> None:
    """Raises TensorOptError unless a process group runs."""
    if not dist.is_initialized():
        raise TensorOptError(
            f"{function} needs a process group; call tensoropt_torch.init() first, under torchrun "
            "for more than one process"
        )
