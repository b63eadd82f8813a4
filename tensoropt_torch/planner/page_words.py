"""What the page of a frontier says first: figures and sentences about the plan that is picked, all
derived from its costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tensoropt_torch.config import Device
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.planner.described_points import PointView
from tensoropt_torch.planner.points import pick_index
from tensoropt_torch.planner.step_work import StepWork
from tensoropt_torch.telling.because import costs_in, why_faster
from tensoropt_torch.telling.details import PlanDetails
from tensoropt_torch.telling.stages import WAITS_FOR_STAGES
from tensoropt_torch.telling.timeline import Timeline
from tensoropt_torch.units import dtype_name, format_bytes, format_seconds

_MOST_RUN_AGAIN = 3  # kinds of operators that are named
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
        yield "a step", format_seconds(time_s)
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


def sentences(details: PlanDetails, timeline: Timeline, peak_bytes: float | None) -> Iterator[str]:
    """What a plan does: splits, what is held, memory, and what a step's time is."""
    yield from _sentences_of(details.summary)
    if details.run_again:
        most = list(details.run_again.items())[:_MOST_RUN_AGAIN]
        named = ", ".join(f"{kind} ({format_seconds(seconds)})" for kind, seconds in most)
        whole_s = format_seconds(sum(details.run_again.values()))
        yield f"What runs again takes {whole_s}, most of it {named}."
    memory = {name: count for name, count in details.memory.items() if count > 0}
    whole = sum(memory.values())
    parts = ", ".join(
        f"{format_bytes(count)} {name}"
        for name, count in sorted(memory.items(), key=lambda item: -item[1])
        if count >= _LEAST_SHARE * whole
    )
    yield f"A device keeps {format_bytes(whole)}: {parts}{_peak_in_words(whole, peak_bytes)}."
    waited = f"waits {format_seconds(timeline.waited_s)} for the network"
    hidden = (
        f", while {format_seconds(timeline.hidden_s)} of collectives run behind its computing"
        if timeline.hidden_s > 0
        else ""
    )
    for_stages = details.time.get(WAITS_FOR_STAGES, 0.0)
    others = f", and {format_seconds(for_stages)} for other stages" if for_stages > 0 else ""
    computing = format_seconds(timeline.time_s - timeline.waited_s - for_stages)
    yield f"In a step it computes for {computing} and {waited}{others}{hidden}."


def _peak_in_words(kept: float, peak_bytes: float | None) -> str:
    """Beside the bytes that are kept in all, of which some may be gone before others come."""
    if not peak_bytes:
        return ""
    why = "with what lives for a moment only" if peak_bytes > kept else "not all of it at once"
    return f"; {why}: its peak is {format_bytes(peak_bytes)}"


def with_less_memory(
    points: Sequence[tuple[float, float]],
    picked: int,
    limit: float,
    details: Callable[[int], PlanDetails],
) -> str:
    """What it costs if a device has a round amount less, at most a fifth of the limit, for the plan
    that is picked of (memory, time) ``points``; ``details`` are those of a point by its number."""
    less, amount = _round_part(limit)
    other = pick_index(points, points[picked][0] - less)
    if other is None:
        return (
            f"With {amount} less than that on a device nothing fits: "
            f"the least that a plan keeps is {format_bytes(points[0][0])}."
        )
    memory, time_s = points[other]
    why = why_faster(costs_in(details(other)), costs_in(details(picked)), "this one")
    return (
        f"With {amount} less than that on a device the fastest plan would keep "
        f"{format_bytes(memory)} and take {format_seconds(time_s)}, {why}."
    )


def _round_part(limit: float) -> tuple[float, str]:
    """The largest of 1, 2, 5, 10, ... GiB or MiB that is at most a fifth: bytes, and in words."""
    unit, name = (2**30, "GiB") if limit >= 5 * 2**30 else (2**20, "MiB")
    power = 10.0 ** math.floor(math.log10(limit / 5 / unit))
    amount = max(step * power for step in (1, 2, 5) if step * power * unit <= limit / 5)
    return amount * unit, f"{amount:g} {name}"


def _sentences_of(summary: str) -> list[str]:
    """Of a text whose sentences end with a full stop and a space."""
    return [f"{one.removesuffix('.')}." for one in summary.split(". ")]


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
    text = why_faster(costs_in(after.details), costs_in(before.details), "the one before")
    return Gain(before, after, memory, text)
