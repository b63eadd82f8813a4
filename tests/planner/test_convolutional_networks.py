"""The convolutional networks of the benchmarks can be planned, and by-hand
strategies are members of their frontiers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.models.vgg import vgg16
from benchmarks.models.wide_resnet import WideResNet, WideResNetConfig, wide_resnet
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.planner.known_strategies import ROLES, allowed_configs

FLOAT_BYTES = 4
GIB = 2**30
BY_HAND = ("data parallel", "fully sharded")


def captured_on_meta(build: Callable[[], Any]) -> CapturedModel:
    """An operator without a rule is an error."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("error")
        return capture(*build())


def parameter_bytes(captured: CapturedModel) -> int:
    tensors = [source.placeholder.meta["val"] for source in captured.parameters]
    return FLOAT_BYTES * sum(tensor.numel() for tensor in tensors)


@pytest.mark.parametrize(("build", "size_gib"), [(vgg16, 0.52), (wide_resnet, 7.3)])
def test_the_benchmarks_can_be_planned_for_16_devices(
    build: Callable[[], Any], size_gib: float
) -> None:
    captured = captured_on_meta(build)
    assert parameter_bytes(captured) == pytest.approx(size_gib * GIB, rel=0.02)
    frontier = find_frontier(PlanningTask(captured, load_cluster("paper-2x8-v100")), 16)
    assert frontier.guarantee.exact
    assert frontier.guarantee.complete
    assert frontier.smallest.memory_bytes < frontier.fastest.memory_bytes
    assert frontier.fastest.time_s < frontier.smallest.time_s


def small_resnet() -> Any:
    model = WideResNet(WideResNetConfig(blocks=(1, 2), width=64, image_size=32, n_class=64))
    return model, (torch.zeros(64, 3, 32, 32), torch.zeros(64, dtype=torch.long))


def test_strategies_by_hand_are_members_and_not_below_the_frontier() -> None:
    captured = captured_on_meta(small_resnet)
    task = PlanningTask(captured, load_cluster("h100-8"))
    space = make_space(captured, task.settings(4))

    def search(allowed: list[list[bool]]) -> list[tuple[float, float]]:
        result = SearchSettings(epsilon=1e-3).run(space, allowed=allowed)
        return [tuple(point) for point in result.points]

    everything = search([])
    ends = {name: search(allowed_configs(space, ROLES[name])) for name in BY_HAND}
    for name, points in ends.items():
        assert points, name
        for memory, time_s in points:
            assert any(m <= 1.002 * memory and t <= 1.002 * time_s for m, t in everything), name
    # Sharding saves 3 of 4 parts of parameters, gradients and two moments.
    saved = ends["data parallel"][0][0] - ends["fully sharded"][0][0]
    assert saved == pytest.approx(3 / 4 * 4 * parameter_bytes(captured), rel=0.05)
