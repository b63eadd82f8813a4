"""Data parallel, ZeRO, tensor and sequence parallel and hybrids are members."""

from __future__ import annotations

import pytest
import torch

from benchmarks.models.llama import Llama, LlamaConfig
from tensoropt_torch import _C, Plan
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.plan import Settings
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.telling.details import details_of
from tensoropt_torch.telling.work import PARALLELISM
from tests.planner.known_strategies import ROLES, allowed_configs

DEVICES = 4
STATE_BYTES = 16  # float32 parameter, gradient and two moments

# Into how many parts the work is cut, and which share of the parameters a device holds.
SPLIT: dict[str, tuple[dict[str, int], float]] = {
    "data parallel": ({"batch": 4}, 1.0),
    "fully sharded": ({"batch": 4}, 0.25),
    "tensor parallel": ({"features": 4}, 0.25),
    "sequence parallel": ({"features": 4}, 0.25),
    "data and tensor parallel": ({"batch": 2, "features": 2}, 0.5),
    "fully sharded and tensor parallel": ({"batch": 2, "features": 2}, 0.25),
    "fully sharded and sequence parallel": ({"batch": 2, "features": 2}, 0.25),
}


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    with torch.device("meta"):
        config = LlamaConfig(
            vocab_size=4096, n_layer=2, n_head=16, n_kv_head=8, n_embd=512, n_hidden=2048
        )
        tokens = torch.zeros(2, 16, 128, dtype=torch.long)
        return capture(Llama(config), (tokens[0], tokens[1]))


def parameter_bytes(captured: CapturedModel) -> float:
    tensors = [s.placeholder.meta["val"] for s in captured.parameters]
    return float(STATE_BYTES * sum(t.numel() for t in tensors))


def search(captured: CapturedModel, name: str) -> tuple[_C.SearchSpace, Settings, _C.SearchResult]:
    settings = PlanningTask(captured, load_cluster("h100-8")).settings(DEVICES)
    space = make_space(captured, settings)
    allowed = allowed_configs(space, ROLES[name]) if name else []
    return space, settings, SearchSettings(epsilon=1e-3).run(space, allowed=allowed)


def frontier_of(captured: CapturedModel, name: str) -> list[tuple[float, float]]:
    *_, result = search(captured, name)
    return [tuple(point) for point in result.points]


def test_every_known_strategy_is_a_member_and_not_below_the_frontier(
    captured: CapturedModel,
) -> None:
    everything = frontier_of(captured, "")
    for name in ROLES:
        points = frontier_of(captured, name)
        assert points, name
        for memory, time_s in points:
            assert any(m <= 1.002 * memory and t <= 1.002 * time_s for m, t in everything), name


def test_the_costs_of_known_strategies_are_what_they_are_known_for(
    captured: CapturedModel,
) -> None:
    ends = {name: frontier_of(captured, name) for name in ROLES}
    state = parameter_bytes(captured)
    smallest = {name: points[0][0] for name, points in ends.items()}
    # Data parallel holds all states; sharding them saves 3 of 4 parts.
    assert smallest["data parallel"] > state
    saved = smallest["data parallel"] - smallest["fully sharded"]
    assert 0.7 * state < saved < 0.8 * state
    # Keeping gathered parameters (ZeRO-2) costs memory and saves time.
    zero3, zero2 = ends["fully sharded"][0], ends["fully sharded"][-1]
    assert zero2[0] > zero3[0] and zero2[1] < zero3[1]
    # Tensor parallelism splits the states of all products.
    assert smallest["tensor parallel"] < smallest["data parallel"]
    # Sequence parallelism splits what tensor parallelism holds on every device.
    assert smallest["sequence parallel"] < smallest["tensor parallel"]
    assert smallest["fully sharded and tensor parallel"] < smallest["data and tensor parallel"]


@pytest.mark.parametrize("name", ROLES)
def test_known_strategies_are_called_what_they_are(captured: CapturedModel, name: str) -> None:
    space, settings, result = search(captured, name)
    plan = Plan.of(space, settings, captured, result.unroll(0))
    details = details_of(plan)
    parts, held = SPLIT[name]
    most, *others = details.work
    assert most.parts == parts and most.share > 0.9, details.summary
    assert sum(one.share for one in (most, *others)) == pytest.approx(1)
    kinds = " x ".join(PARALLELISM[kind] for kind in parts)
    assert f"({kinds} parallelism)" in details.summary
    # Norms are small and may be held whole.
    storage = details.storage
    share = sum(one.device_bytes for one in storage) / sum(one.num_bytes for one in storage)
    assert share == pytest.approx(held, abs=0.01), details.summary
    whole = sum(one.num_bytes for one in storage)
    gathered = sum(
        one.num_bytes
        for one in details.collectives
        if one.kind == "all_gather" and one.moved.startswith("parameters")
    )
    assert (gathered > 0.4 * whole) is name.startswith("fully sharded"), details.summary
    assert (gathered > 0) is ("gathers" in details.summary)
    assert plan.summary() == details.summary
