"""Step times over device counts, and what a step costs on so many devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tensoropt_torch.config import Device

Objective = Literal["device_count", "energy", "money"]


@dataclass(frozen=True)
class ProfileRow:
    """What ``num_devices`` devices can do within the memory limit.

    ``time_s`` and ``memory_bytes`` are those of the fastest point that fits,
    None if none fits; ``least_memory_bytes`` is what would do. ``peak_bytes`` is the simulated
    peak of that point, None if the limit was compared with sums. All bytes, those of
    ``memory_limit`` too, are per device.
    """

    num_devices: int
    time_s: float | None
    memory_bytes: float | None
    least_memory_bytes: float
    memory_limit: float
    peak_bytes: int | None = None

    @property
    def feasible(self) -> bool:
        return self.time_s is not None


def rates_of(device: Device) -> Mapping[Objective, float | None]:
    """What one device costs in a second: W, and price; of ``device_count`` what it counts.
    None where the cluster does not say it."""
    price = device.price_per_hour
    return {
        "device_count": 1.0,
        "energy": device.power_w,
        "money": None if price is None else price / 3600,
    }


def cost_of_step(objective: Objective, rate: float, num_devices: int, time_s: float) -> float:
    """What a step on so many devices costs, in the unit of the objective."""
    return num_devices * rate * (1.0 if objective == "device_count" else time_s)
