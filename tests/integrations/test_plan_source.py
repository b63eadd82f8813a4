"""What a plan is asked for where a training loop wants activations to be checkpointed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Plan, PlanningOptions
from tensoropt_torch.integrations import plan_source
from tensoropt_torch.integrations.plan_source import PlanSource
from tensoropt_torch.tasks import Example

EXAMPLE = Example(nn.Linear(8, 8), (torch.ones(64, 8),), loss_fn=lambda y: y.sum())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PlanningOptions]:
    """The options that plans are found with; nothing is made parallel."""
    found: list[PlanningOptions] = []

    def find(example: Example, planning: PlanningOptions, **_: Any) -> Plan:
        found.append(planning)
        return plan(planning.recompute)

    monkeypatch.setattr(plan_source.api, "find_strategy", find)
    monkeypatch.setattr(plan_source.api, "parallelize", lambda *_, **__: None)
    return found


def plan(recompute: bool | None) -> Plan:
    """For shares of the batch."""
    frontier = tensoropt_torch.find_frontier(
        EXAMPLE, cluster="h100-8", num_devices=2, inputs="sharded", recompute=recompute
    )
    return frontier.fastest.plan


@pytest.mark.parametrize(
    ("wished", "given", "expected"),
    [
        (False, None, None),
        (True, None, True),
        (True, PlanningOptions(), True),
        (True, PlanningOptions(recompute=True), True),
        (False, PlanningOptions(recompute=True), True),
    ],
)
def test_a_wish_is_an_option_unless_the_user_has_one(
    asked: list[PlanningOptions],
    wished: bool,
    given: PlanningOptions | None,
    expected: bool | None,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PlanSource(planning=given, recompute=wished).parallelize(EXAMPLE)
    (options,) = asked
    assert options.recompute is expected
    assert options.inputs == "sharded"


@pytest.mark.parametrize("recompute", [True, False])
def test_a_plan_that_recomputes_nothing_is_told(
    asked: list[PlanningOptions], recompute: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        PlanSource(plan(recompute), recompute=True).parallelize(EXAMPLE)
    told = [w for w in caught if "activation_checkpointing is ignored" in str(w.message)]
    assert bool(told) != recompute
    assert not asked
