"""Figures and sentences of the page of a frontier, all derived from costs: what the model is, what
devices do with a step, and what a point has over another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tensoropt_torch.config import Device
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Settings
from tensoropt_torch.planner.described_points import PointView
from tensoropt_torch.planner.step_work import StepWork
from tensoropt_torch.telling.because import costs_in, why_faster
from tensoropt_torch.telling.timeline import Timeline
from tensoropt_torch.units import dtype_name, format_part, format_step

_LEAST_SHARE = 0.01  # of a sum, of what is told of its parts


@dataclass(frozen=True)
class Rate:
    """What devices do with a step of some work.

    Attributes:
        step: what it works on.
        device: what it runs on.
        num_devices: all together.
    """

    step: StepWork
    device: Device
    num_devices: int

    @property
    def unit(self) -> str:
        """What is counted."""
        return "tokens" if self.step.tokens else "samples"

    @property
    def amount(self) -> int:
        """In a step."""
        return self.step.tokens or self.step.rows

    def per_second(self, time_s: float) -> str:
        """Of all devices, such as ``57,703 tokens/s``."""
        return f"{_whole(self.amount / time_s)} {self.unit}/s"

    def utilisation(self, time_s: float) -> float | None:
        """MFU; None: a dtype has no peak in the cluster's description."""
        try:
            return self.step.peak_seconds(self.device) / (self.num_devices * time_s)
        except TensorOptError:
            return None

    def price_of_billion(self, time_s: float) -> str | None:
        """Of as many tokens or samples; None: the cluster does not say a price."""
        if self.device.price_per_hour is None or not self.amount:
            return None
        hours = self.num_devices * time_s / 3600 * 1e9 / self.amount
        money = hours * self.device.price_per_hour
        return f"{money:,.0f} {self.device.price_currency or ''}".strip()

    def tiles(self, time_s: float, memory: tuple[str, str]) -> Iterator[tuple[str, str]]:
        """Figures by what they are; the memory as well."""
        yield "a step", format_step(time_s)
        if self.amount:
            yield f"{self.unit} a second", _whole(self.amount / time_s)
            yield (
                f"{self.unit} a second and device",
                _whole(self.amount / time_s / self.num_devices),
            )
        if utilisation := self.utilisation(time_s):
            yield "of the devices' peak (MFU)", f"{utilisation:.1%}"
        yield memory
        if price := self.price_of_billion(time_s):
            yield f"for a billion {self.unit}", price


def _whole(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def model_name(captured: CapturedModel) -> str:
    """The class of the model, where the capture has kept it."""
    for node in captured.graph_module.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if path == "model":
                name = kind if isinstance(kind, str) else kind.__name__
                return name.rpartition(".")[2]
    return "A model"


def number_of_parameters(captured: CapturedModel) -> str:
    """E.g. ``8.03 billion parameters``."""
    count = sum(source.placeholder.meta["val"].numel() for source in captured.parameters)
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if count >= unit:
            return f"{count / unit:.3g}{name} parameters"
    return f"{count:,} parameters"


def model_in_words(captured: CapturedModel) -> str:
    """What a model is known by to the planner: its parameters, and what it is called with."""
    values = [source.placeholder.meta["val"] for source in captured.parameters]
    dtypes = dict.fromkeys(dtype_name(value.dtype) for value in values)
    inputs = []
    for source in captured.inputs:
        value = source.placeholder.meta.get("val")
        if isinstance(value, torch.Tensor):
            shape = " x ".join(map(str, value.shape))
            inputs.append(f"{source.names[0]} ({shape}, {dtype_name(value.dtype)})")
    number = sum(value.numel() for value in values)
    return (
        f"{number:,} parameters ({', '.join(dtypes)}) in {len(values)} tensors, called with "
        f"{', '.join(inputs)} on all devices together."
    )


def overlap_in_words(settings: Settings, timeline: Timeline) -> str:
    """What is known of collectives that run while a device computes."""
    if not settings.overlap:
        return "collectives are waited for"
    early = "collectives of parameters and gradients begin early"
    if timeline.hidden_s > 0:
        return f"{early}, and {format_part(timeline.hidden_s)} of them run while a device computes"
    return f"{early}, but nothing is known of what that hides here, so all are counted as waits"


@dataclass(frozen=True)
class Gain:
    """What a point with more memory has over the one before: bytes by what they are for that
    differ, before and after, and why it is faster."""

    before: PointView
    after: PointView
    memory: tuple[tuple[str, float, float], ...]
    because: str


def gains(points: Sequence[PointView]) -> list[Gain]:
    """From each point to the next."""
    return [_gain(*pair) for pair in itertools.pairwise(points)]


def _gain(before: PointView, after: PointView) -> Gain:
    least = _LEAST_SHARE * after.memory_bytes
    counts = [
        (name, before.details.memory.get(name, 0), after.details.memory.get(name, 0))
        for name in {**before.details.memory, **after.details.memory}  # stages have more kinds
    ]
    memory = tuple((name, old, new) for name, old, new in counts if abs(new - old) >= least)
    text = why_faster(
        costs_in(after.details), costs_in(before.details), "the one before", small=True
    )
    return Gain(before, after, memory, text)
