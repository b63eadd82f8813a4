"""What changes from one plan to another."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Frontier, Plan, TensorOptError
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.units import format_bytes


def frontier(batch: int = 8192, num_devices: int = 4) -> Frontier:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096))
        x = torch.zeros(batch, 4096)
    example = tensoropt_torch.Example(model, (x,), loss_fn=nn.functional.mse_loss, targets=(x,))
    return tensoropt_torch.find_frontier(example, cluster="h100-8", num_devices=num_devices)


@pytest.fixture(scope="module")
def ends() -> tuple[Plan, Plan]:
    found = frontier()
    assert len(found) > 1
    return found.smallest.plan, found.fastest.plan


def test_the_operators_that_change_are_named(ends: tuple[Plan, Plan]) -> None:
    before, after = ends
    found = before.diff(after)
    assert 0 < len(found.choices) <= found.num_choices
    assert all(change.before != change.after for change in found.choices)
    assert found.costs[0].before == format_bytes(before.memory_bytes)
    assert found.settings == ()
    back = after.diff(before)
    assert [(c.name, c.after, c.before) for c in back.choices] == [
        (c.name, c.before, c.after) for c in found.choices
    ]
    assert found.title in found._repr_html_()


def test_nothing_changes_to_the_same_plan(ends: tuple[Plan, Plan]) -> None:
    found = ends[0].diff(ends[0])
    assert found.choices == ()


def test_one_model_is_enough(ends: tuple[Plan, Plan]) -> None:
    before, after = ends
    loaded = Plan.from_json(after.to_json())
    assert before.diff(loaded) == before.diff(after)
    assert loaded.diff(before) == after.diff(before)


def test_without_a_model_plans_are_compared_by_place(ends: tuple[Plan, Plan]) -> None:
    before, after = ends
    alone = Plan.from_json(before.to_json()).diff(Plan.from_json(after.to_json()))
    assert set(before.diff(after).choices) <= set(alone.choices)
    assert all(change.before != change.after for change in alone.choices)


def test_without_a_model_names_do_not_matter(ends: tuple[Plan, Plan]) -> None:
    """They depend on the capture, and may differ between processes."""
    before, after = (Plan.from_json(plan.to_json()) for plan in ends)
    renamed = tuple((f"other.{name}", label) for name, label in after.choices.configs)
    other = after.with_part(choices=replace(after.choices, configs=renamed))
    assert before.diff(other).choices == before.diff(after).choices != ()
    fewer = after.with_part(choices=replace(after.choices, configs=renamed[1:]))
    with pytest.raises(TensorOptError, match="give it"):
        before.diff(fewer)


def test_plans_of_other_spaces_are_compared_by_name(ends: tuple[Plan, Plan]) -> None:
    """Though the configs are numbered otherwise there."""
    plan = ends[0]
    assert plan.captured is not None
    settings = replace(plan.settings, space="full")
    larger = make_space(plan.captured, settings)
    strategy = plan.choices.strategy(larger)
    own = make_space(plan.captured, plan.settings)
    assert strategy.config != plan.choices.strategy(own).config
    other = Plan.of(larger, settings, plan.captured, strategy)
    alone = Plan.from_json(plan.to_json()).diff(Plan.from_json(other.to_json()))
    assert alone.choices == ()
    assert [change.name for change in alone.settings] == ["space"]


def test_settings_that_change_are_named(ends: tuple[Plan, Plan]) -> None:
    plan = ends[0]
    other = replace(plan, settings=replace(plan.settings, overlap=not plan.settings.overlap))
    (change,) = plan.diff(other).settings
    assert (change.name, change.before, change.after) == ("overlap", "True", "False")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: frontier(batch=4096), r"different models or batches.*compare plans of one"),
        (lambda: frontier(num_devices=2), r"different meshes: 2 x 2 and 2; compare plans of one"),
    ],
    ids=["batch", "devices"],
)
def test_plans_of_something_else_are_refused(
    ends: tuple[Plan, Plan], other: object, message: str
) -> None:
    assert callable(other)
    with pytest.raises(TensorOptError, match=message):
        ends[0].diff(other().smallest.plan)


def test_layers_that_change_alike_are_folded(ends: tuple[Plan, Plan]) -> None:
    """Each change is in one row, whose number is that of its names."""
    before, after = ends
    found = before.diff(after)
    assert found.choices
    counts = [re.search(r" \((\d+)\)$", change.name) for change in found.folded_choices]
    assert sum(int(count[1]) if count else 1 for count in counts) == len(found.choices)
    assert {(c.before, c.after) for c in found.folded_choices} == {
        (c.before, c.after) for c in found.choices
    }
