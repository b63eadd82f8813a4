"""The rows of an advice: what a strategy on some machines takes and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensoropt_torch.config import Device
from tensoropt_torch.telling.chosen import Chosen

OURS = "TensorOpt"
_HOUR = 3600.0


@dataclass(frozen=True)
class Price:
    """Of one device for an hour."""

    per_hour: float
    currency: str
    source: str


def price_of(device: Device) -> Price | None:
    """What its description says."""
    if device.price_per_hour is None:
        return None
    return Price(
        device.price_per_hour, device.price_currency or "", device.price_source or "not said"
    )


@dataclass(frozen=True)
class AdviceRow:
    """One strategy on one cluster, for all the work that was asked for.

    Attributes:
        model: the name of the model and its batch.
        machine: the kind of machine, as it was asked for.
        cluster: what has so many devices of it.
        num_devices: all together.
        strategy: ``TensorOpt``, or a strategy by its name.
        chosen: what the strategy does; None: nothing fits.
        time_s: of a step; None: nothing fits.
        memory_bytes: of one device: the simulated peak, or the sum of what is kept where that is
            so small that no peak was simulated; of what does not fit the least that was found.
        is_peak: whether it is a simulated peak.
        memory_limit: bytes of one device that may be used.
        rows, tokens: of a step. No tokens: 0.
        steps: of all the work.
        peak_s: seconds that one device would take for the FLOPs of a step (forward and backward
            without recomputation) at the peak of its data sheet.
        price: of a device; None: not known.
        because: why it is faster or slower than the row above it.
    """

    model: str
    machine: str
    cluster: str
    num_devices: int
    strategy: str
    chosen: Chosen | None
    time_s: float | None
    memory_bytes: float
    is_peak: bool
    memory_limit: float
    rows: int
    tokens: int
    steps: float
    peak_s: float
    price: Price | None
    because: str = ""

    @property
    def where(self) -> str:
        """What runs on which devices."""
        return f"{self.model} on {self.num_devices} of {self.machine}"

    @property
    def fits(self) -> bool:
        return self.time_s is not None

    @property
    def missing_bytes(self) -> float:
        """By how much it does not fit."""
        return 0.0 if self.fits else self.memory_bytes - self.memory_limit

    @property
    def tokens_per_s(self) -> float | None:
        """Of all devices."""
        return self.tokens / self.time_s if self.time_s and self.tokens else None

    @property
    def samples_per_s(self) -> float | None:
        """Of all devices."""
        return self.rows / self.time_s if self.time_s else None

    @property
    def mfu(self) -> float | None:
        """Of all that the devices could compute in a step, the share that forward and backward
        need without recomputation (model FLOPs utilisation)."""
        return self.peak_s / (self.num_devices * self.time_s) if self.time_s else None

    @property
    def hours(self) -> float | None:
        """Of all the work."""
        return None if self.time_s is None else self.steps * self.time_s / _HOUR

    @property
    def days(self) -> float | None:
        """Of all the work."""
        return None if self.hours is None else self.hours / 24

    @property
    def money(self) -> float | None:
        """Of all the work, in the currency of the price."""
        if self.hours is None or self.price is None:
            return None
        return self.hours * self.num_devices * self.price.per_hour

    def to_record(self) -> dict[str, Any]:
        """As plain data, what is derived included."""
        return {
            "model": self.model,
            "machine": self.machine,
            "cluster": self.cluster,
            "devices": self.num_devices,
            "strategy": self.strategy,
            "fits": self.fits,
            "step_s": self.time_s,
            "tokens_per_s": self.tokens_per_s,
            "samples_per_s": self.samples_per_s,
            "mfu": self.mfu,
            "hours": self.hours,
            "money": self.money,
            "currency": self.price.currency if self.price else None,
            "memory_bytes": self.memory_bytes,
            "memory_is_simulated_peak": self.is_peak,
            "memory_limit": self.memory_limit,
            "missing_bytes": self.missing_bytes,
            "split": self.chosen.split if self.chosen else None,
            "recomputed": self.chosen.recomputed if self.chosen else None,
            "micro_batches": self.chosen.micro_batches if self.chosen else None,
            "because": self.because or None,
        }
