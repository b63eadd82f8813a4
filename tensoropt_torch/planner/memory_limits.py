"""What a memory limit is compared with, and the limit where none is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from tensoropt_torch.config import DeviceType
from tensoropt_torch.errors import check_choice
from tensoropt_torch.units import format_bytes

# What is compared with a memory limit: the sums that the search uses, or simulated
# peaks (docs/costs.md).
Predictor = Literal["sums", "simulated"]

# Part of the device's memory that sums may fill by default: the rest is for what they do
# not see.
DEFAULT_MEMORY_FRACTION = 0.9

# The same of simulated peaks. On GPUs workspaces of libraries, buffers of NCCL and
# fragmentation are not simulated.
SIMULATED_FRACTIONS: Mapping[DeviceType, float] = {"cpu": 1.0, "cuda": 0.9}


def default_memory_limit(device_bytes: float, fraction: float = DEFAULT_MEMORY_FRACTION) -> float:
    """Bytes per device that a plan may use if no limit is given, of a device that has so many:
    the ``fraction`` that its task says, where there is a task."""
    return fraction * device_bytes


def limit_advice(least_bytes: float, device_bytes: float) -> str:
    """What to say of a limit that is below what is needed: one that a device has the memory for,
    or that it has not."""
    if least_bytes <= device_bytes:
        return "raise memory_limit to that, or "
    return f"a device has {format_bytes(device_bytes)}, so "


def recompute_advice(recompute: bool) -> str:
    """Where nothing fits and this is one of the ways out that are not tried yet."""
    return "" if recompute else "set recompute=True, "


def default_memory_fraction(predictor: Predictor | None, device: DeviceType) -> float:
    """The part of a device's memory that predictions may fill if nothing is known of
    their errors. None: peaks where they can be simulated, else sums.

    Raises:
        TensorOptError: there is no such predictor.
    """
    if predictor is None:
        return DEFAULT_MEMORY_FRACTION
    check_choice("memory", predictor, get_args(Predictor))
    return DEFAULT_MEMORY_FRACTION if predictor == "sums" else SIMULATED_FRACTIONS[device]
