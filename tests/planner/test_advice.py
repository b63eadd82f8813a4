"""What errors advise where nothing fits: it was tried, and it holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Cluster, TensorOptError, load_cluster

ROWS, WIDTH, LAYERS = 1 << 16, 512, 6


class Layers(nn.Module):
    """Whose activations outweigh its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


def cluster(memory_bytes: float, name: str = "h100-2") -> Cluster:
    """Of devices with so much memory, 90 % of which plans may use."""
    found = load_cluster(name)
    return replace(found, device=replace(found.device, memory_bytes=int(memory_bytes / 0.9)))


def strategy(**options: Any) -> Any:
    with torch.device("meta"):
        model, args = Layers(), (torch.zeros(ROWS, WIDTH),)
    return tensoropt_torch.find_strategy(model, args, **options)


def error(**options: Any) -> str:
    with pytest.raises(TensorOptError) as found:
        strategy(**options)
    return str(found.value)


def figures(text: str) -> tuple[str, str]:
    """Time and memory that the first way takes."""
    found = re.search(r"\): ([\d.]+ m?s) a step with ([\d.]+ [KMG]iB)", text)
    assert found is not None, text
    return found[1], found[2]


LEAST = 777 * 2**20  # of any peak on two devices


@pytest.mark.parametrize(
    ("memory", "limit", "way", "options"),
    [
        ("sums", 200e6, r"set recompute=True \(--recompute\)", {"recompute": True}),
        (
            None,
            420e6,
            r"set max_micro_batches=8 \(--max-micro-batches 8\)",
            {"max_micro_batches": 8},
        ),
    ],
)
def test_what_was_not_asked_for_is_tried(
    memory: Any, limit: float, way: str, options: dict[str, Any]
) -> None:
    small = cluster(limit)
    text = error(cluster=small, memory=memory)
    assert re.search(way, text), text
    assert "raise memory_limit" not in text
    assert "a device has" in text
    plan = strategy(cluster=small, memory=memory, **options)
    took = plan.memory_bytes if memory == "sums" else plan.peak_bytes
    assert took <= limit * 1.001
    time_s, least = figures(text)
    assert float(time_s.split()[0]) / 1e3 == pytest.approx(plan.time_s, rel=0.1)
    assert least.endswith("iB")


def test_more_machines_are_tried() -> None:
    text = error(cluster="h100-2", memory_limit=420e6)
    named = re.search(r"use more machines, such as cluster='(h100-\d+x2)' \(--cluster", text)
    assert named is not None, text
    assert strategy(cluster=named[1], memory_limit=420e6).peak_bytes <= 420e6


def test_more_devices_of_the_cluster_are_tried() -> None:
    text = error(cluster="h100-8", num_devices=1, memory_limit=900e6)
    assert "use at least 2 devices: " in text
    assert strategy(cluster="h100-8", num_devices=2, memory_limit=900e6).peak_bytes <= 900e6


def test_a_limit_is_advised_only_up_to_the_memory_of_a_device() -> None:
    text = error(cluster="h100-2", memory_limit=420e6)
    assert "raise memory_limit to that. What fits without: set max_micro_batches=8" in text
    for text in (
        error(cluster=cluster(420e6)),
        error(cluster=cluster(420e6), option="mini_parallelism"),
        error(cluster=cluster(420e6), memory="sums", option="mini_parallelism"),
        error(cluster=cluster(1e6)),
        frontier_error(lambda frontier: frontier.at(1e6)),
    ):
        assert "raise memory_limit" not in text, text
        assert "a device has" in text, text


def frontier_error(ask: Callable[[tensoropt_torch.Frontier], Any]) -> str:
    with torch.device("meta"):
        model, args = Layers(), (torch.zeros(ROWS, WIDTH),)
    frontier = tensoropt_torch.find_frontier(model, args, cluster=cluster(1e6))
    with pytest.raises(TensorOptError) as found:
        ask(frontier)
    return str(found.value)


def test_where_nothing_helps_it_is_said_what_was_tried() -> None:
    text = error(cluster=cluster(1e6))
    assert text.endswith(
        "a device has 1.06 MiB, so use a smaller batch. Tried as well, and not enough: "
        "recomputation, micro-batches, more devices than the 2 of 'h100-2'"
    )
    asked = error(cluster=cluster(1e6), recompute=True, max_micro_batches=2)
    assert asked.endswith("and not enough: more devices than the 2 of 'h100-2'")


def test_the_part_of_a_pipeline_that_does_not_fit_is_told_with_what_it_needs() -> None:
    with torch.device("meta"):
        model, args = Layers(), (torch.zeros(ROWS, WIDTH),)
    with pytest.raises(TensorOptError) as found:
        tensoropt_torch.find_stages(
            model, args, cluster="h100-2", memory_limit=1e6, stages=2, memory="sums"
        )
    assert re.fullmatch(
        r"part 0 of 2: no strategy needs at most 976.6 KiB per device: the least is [\d.]+ MiB, "
        r"with [\d.]+ MiB for what stages send each other; raise memory_limit to that, or set "
        r"recompute=True, give more micro_batches, or use more devices or stages",
        str(found.value),
    ), str(found.value)
