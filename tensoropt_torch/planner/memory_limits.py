"""What a memory limit is compared with, and the limit where none is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from tensoropt_torch.config import DeviceType
from tensoropt_torch.errors import check_choice

# What is compared with a memory limit: the sums that the search uses, or simulated
# peaks (docs/costs.md).
Predictor = Literal["sums", "simulated"]

# Part of the device's memory that sums may fill by default: the rest is for what they do
# not see.
DEFAULT_MEMORY_FRACTION = 0.9

# The same of simulated peaks. On GPUs workspaces of libraries, buffers of NCCL and
# fragmentation are not simulated.
SIMULATED_FRACTIONS: Mapping[DeviceType, float] = {"cpu": 1.0, "cuda": 0.9}


def default_memory_fraction(predictor: Predictor, device: DeviceType) -> float:
    """The part of a device's memory that predictions may fill if nothing is known of
    their errors.

    Raises:
        TensorOptError: there is no such predictor.
    """
    check_choice("memory", predictor, get_args(Predictor))
    return DEFAULT_MEMORY_FRACTION if predictor == "sums" else SIMULATED_FRACTIONS[device]
