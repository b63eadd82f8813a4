"""Conversions of a module that is parallel already: the plan fixes devices and dtypes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError


def check_conversion(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Raises TensorOptError unless ``fn`` keeps the device and the dtypes: ``to``, ``half`` and
    their like are for the model before it is parallel."""
    for tensor in (*module.parameters(), *module.buffers()):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        with torch.no_grad():
            probe = local.new_zeros(1)
            made = fn(probe)
        if (made.dtype, made.device) != (probe.dtype, probe.device):
            raise TensorOptError(
                f"a parallel module stays on {probe.device} in {probe.dtype}; it cannot "
                f"become {made.dtype} on {made.device}: convert the model before "
                "parallelize, or use torch.autocast"
            )
