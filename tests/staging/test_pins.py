"""How many stages there are, and where they begin, as it is pinned."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tensoropt_torch import (
    Example,
    PlanningOptions,
    TensorOptError,
    find_frontier,
    find_stages,
    find_strategy,
    profile,
)
from tensoropt_torch.plan import StagedPlan, stage_pins_of
from tensoropt_torch.stages import cut_points
from tests.stages.models import make

DEVICES = 4


def example() -> Example:
    case = make("llama", torch.float32)
    return Example(case.model, case.args, **case.keywords)


def options(**changes: Any) -> PlanningOptions:
    asked: dict[str, Any] = {"cluster": "cpu", "max_micro_batches": 2, "max_stages": 4}
    return PlanningOptions(**(asked | changes), memory="sums")


LAYER = "layers.1"


def test_all_points_are_in_as_many_stages() -> None:
    planning = options(pin={"stages": 2})
    frontier = find_frontier(example(), num_devices=DEVICES, planning=planning)
    assert {point.stages for point in frontier} == {2}
    found = find_strategy(example(), num_devices=DEVICES, planning=planning, memory_limit=math.inf)
    assert isinstance(found, StagedPlan) and found.stages == 2


def test_a_stage_begins_where_it_is_pinned() -> None:
    planning = options(pin={LAYER: "stage"})
    frontier = find_frontier(example(), num_devices=DEVICES, planning=planning)
    assert len(frontier) > 0
    for point in frontier:
        plan = point.plan
        assert isinstance(plan, StagedPlan) and plan.captured is not None
        micro, _ = plan.cut(plan.captured)
        assert cut_points(micro, [LAYER])[0] in plan.cuts
    plan = find_stages(
        example(), cluster="cpu", num_devices=DEVICES, pin={LAYER: "stage", "stages": "2"}
    )
    assert plan.captured is not None
    micro, _ = plan.cut(plan.captured)
    assert list(plan.cuts) == cut_points(micro, [LAYER])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pin": {"stages": 1}}, "'stages' = 1 is not allowed; give a number of stages"),
        ({"pin": {"stages": 3}}, "4 devices cannot be shared out"),
        ({"pin": {"stages": 8}}, "give max_stages=8 or more"),
        ({"pin": {"stages": 2}, "max_stages": 1}, "give max_stages=2 or more"),
        ({"pin": {"stages": 2, "a": "stage", "b": "stage"}}, "1 begin inside of the model"),
        ({"pin": {"layers.7": "stage"}}, "'layers.7', which computes nothing"),
        ({"forbid": {LAYER: "stage"}}, "forbid 'layers.1' = 'stage' is not supported"),
        ({"pin": {"stages": 2, "*": "whole"}}, "not supported with pin= or forbid= of splits"),
    ],
)
def test_wrong_pins_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TensorOptError, match=message):
        find_frontier(example(), num_devices=DEVICES, planning=options(**changes))


def test_what_has_no_stages_refuses_them() -> None:
    with pytest.raises(TensorOptError, match="give max_stages=2 or more"):
        profile(example(), device_counts=[2], pin={"stages": 2})
    with pytest.raises(TensorOptError, match="pin= is not for plans in stages"):
        find_stages(example(), stages=2, cluster="cpu", num_devices=2, pin={"stages": 2})
    with pytest.raises(TensorOptError, match="'stages' = 1"):
        stage_pins_of({"stages": 1})
