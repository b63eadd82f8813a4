"""What a page says first, by figures that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tensoropt_torch
from tensoropt_torch.planner.page_charts import memory_chart
from tensoropt_torch.planner.page_words import Rate
from tensoropt_torch.planner.points import notable_points
from tensoropt_torch.planner.step_work import StepWork

DEVICE = tensoropt_torch.load_cluster("h100-8").device  # 989 TFLOP/s in bfloat16
MEMORY = ("memory of a device at its peak", "2 GiB")
STEP = StepWork(rows=16, tokens=1000, flops={"bfloat16": 989e12})


def test_figures_of_a_step() -> None:
    rate = Rate(STEP, replace(DEVICE, price_per_hour=3.6, price_currency="USD"), 4)
    assert dict(rate.tiles(0.5, MEMORY)) == {
        "a step": "0.5000 s",
        "tokens a second": "2,000",
        "tokens a second and device": "500",
        "of the devices' peak (MFU)": "50.0%",
        "memory of a device at its peak": "2 GiB",
        # A million steps of half a second, four devices at 0.001 USD a second.
        "for a billion tokens": "2,000 USD",
    }


def test_without_tokens_samples_are_counted() -> None:
    rate = Rate(replace(STEP, tokens=0), replace(DEVICE, price_per_hour=None), 4)
    shown = dict(rate.tiles(2.0, MEMORY))
    assert shown["samples a second"] == "8" and not any("billion" in name for name in shown)


def test_a_dtype_without_a_peak_has_no_utilisation() -> None:
    rate = Rate(replace(STEP, flops={"float8": 1.0}), DEVICE, 4)
    assert rate.utilisation(1.0) is None


def test_points_that_are_hardly_faster_are_not_drawn() -> None:
    points = [(1.0, 100.0), (2.0, 99.9), (3.0, 99.0), (4.0, 98.9), (5.0, 98.8)]
    kept = notable_points(points)
    assert kept == [(1.0, 100.0), (3.0, 99.0), (5.0, 98.8)]
    for memory, time_s in points:
        assert min(t for m, t in kept if m <= memory) <= time_s / (1 - 0.005)
    assert notable_points([]) == []


@pytest.mark.parametrize("length", [3, 1000, 12345])
def test_thinned_curves_keep_their_peak(length: int) -> None:
    curve = [index % 7 for index in range(length)]
    curve[length // 2] = 99
    chart = memory_chart(curve, {"forward": 0, "backward": length // 2}, 200.0, 99)
    (line,) = chart.lines
    assert len(line.x) == len(line.y) <= 400
    assert max(line.y) == 99 / 2**30
    assert [mark.label for mark in chart.marks][:2] == ["forward", "backward"]
