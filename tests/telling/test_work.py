"""What splits the work of a plan, in words."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Plan
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space, varied_strategy
from tensoropt_torch.telling.details import details_of
from tensoropt_torch.telling.work import WorkShare, work_in_words

DEVICES = 8


def task() -> PlanningTask:
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 32)
        )
        images = torch.zeros(32, 3, 8, 8)
    captured = capture(model, (images,), loss_fn=lambda y: y.sum())
    return PlanningTask(captured, tensoropt_torch.load_cluster("h100-8"))


def test_shares_of_random_strategies_add_up_and_parts_divide_the_devices() -> None:
    made = task()
    space = make_space(made.captured, made.settings(DEVICES))
    seen = set()
    for seed in range(20):
        strategy = varied_strategy(space, seed)
        plan = Plan.of(space, made.settings(DEVICES), made.captured, strategy)
        shares = details_of(plan, space).work
        assert sum(one.share for one in shares) == pytest.approx(1), seed
        assert [one.share for one in shares] == sorted((s.share for s in shares), reverse=True)
        for one in shares:
            assert DEVICES % math.prod(one.parts.values()) == 0, (seed, one)
            seen |= set(one.parts)
    assert {"batch", "features"} <= seen


@pytest.mark.parametrize(
    ("split", "name"), [("b0", "batch"), ("b1", "positions"), ("n", "features")]
)
def test_dims_of_a_layer_on_sequences_have_their_names(split: str, name: str) -> None:
    with torch.device("meta"):
        model, sequences = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.zeros(4, 32, 16)
    frontier = tensoropt_torch.find_frontier(
        model,
        (sequences,),
        loss_fn=lambda y: y.sum(),
        cluster="h100-8",
        num_devices=2,
        pin={"0": split, "1": {"b0": "d0", "b1": "d1", "n": "d2"}[split]},
    )
    for share in details_of(frontier.fastest.plan).work:
        assert share.parts == {name: 2} or share.share < 0.01


def test_sentences_name_what_has_the_most_work() -> None:
    shares = [
        WorkShare({"batch": 4, "features": 2}, 0.7),
        WorkShare({"positions": 2}, 0.2),
        WorkShare({}, 0.06),
        WorkShare({"batch": 8}, 0.04),
    ]
    assert work_in_words(shares, 8) == (
        "70% of the work is split by batch over 4 and by features over 2 (data x tensor "
        "parallelism), 20% by positions over 2 (sequence parallelism, repeated on 4 devices), "
        "6% not at all, 4% otherwise"
    )
    assert work_in_words(shares[3:], 8) == (
        "4% of the work is split by batch over 8 (data parallelism), 96% otherwise"
    )
    whole = WorkShare({"batch": 8}, 0.999)
    assert work_in_words([whole], 8) == "The work is split by batch over 8 (data parallelism)"
    assert work_in_words([], 8) == "No operator has work that is counted"


def test_one_device_splits_nothing() -> None:
    assert find_frontier(task(), 1).fastest.plan.summary() == "The work is done by one device."


def test_recomputation_and_micro_batches_are_said() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        batch = torch.zeros(32, 64)
    frontier = tensoropt_torch.find_frontier(
        model,
        (batch,),
        loss_fn=lambda y: y.sum(),
        cluster="h100-8",
        num_devices=2,
        recompute=True,
        max_micro_batches=4,
    )
    said = frontier.smallest.plan.summary()
    description = details_of(frontier.smallest.plan).description
    assert description.micro_batches > 1
    assert f"runs its batch as {description.micro_batches} micro-batches." in said
    again = f"{description.num_recomputed} operators run again in backward."
    assert (again in said) is (description.num_recomputed > 0)


def test_a_plan_without_its_model_is_refused(tmp_path: Path) -> None:
    find_frontier(task(), 2).fastest.plan.save(tmp_path / "plan.json")
    with pytest.raises(TensorOptError, match="with_model"):
        Plan.load(tmp_path / "plan.json").summary()
