"""Plans of models with Fourier transforms, of which the batch and the channels are split."""

from __future__ import annotations

import torch
from torch import nn

import tensoropt_torch as to
from tests.distributed.spectral_models import FourierOperator


def _step_time(model: nn.Module, args: tuple[torch.Tensor, ...], devices: int) -> float:
    plan = to.find_strategy(model, args, num_devices=devices, cluster="h100-8")
    return plan.time_s


def test_a_fourier_operator_is_several_times_faster_on_eight_devices() -> None:
    """Of 64 channels on 128 x 128 points; transforms that run whole leave less than twice."""
    with torch.device("meta"):
        model = FourierOperator(64, 16)
        args = torch.randn(256, 128, 128, 3), torch.randn(256, 128, 128, 1)
    one, eight = (_step_time(model, args, devices) for devices in (1, 8))
    assert one / eight >= 7
