"""A model with an operator of the user's own, split by its registered rule."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

import tensoropt_torch
from tensoropt_torch import TensorOptError, register_rule
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks
from tests.distributed.parity import TOLERANCE, differences, labels, train, train_alone
from tests.rules.custom_ops import HEAD_MEAN, SCALED_ADD, head_mean, scaled_add

HERE = "tests.distributed.rules.test_user_rules"
RANDOM_STRATEGIES = 20


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 32))
        self.heads = nn.Parameter(torch.linspace(-1, 1, 4))
        self.down = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = scaled_add(self.up(x), torch.tanh(self.up(x)), self.scale)
        means = head_mean(hidden, self.heads, 4)
        return (self.down(torch.relu(hidden)) - x).square().mean() + means.square().sum()


def model_and_input() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Model().double(), torch.randn(8, 16, dtype=torch.float64)


def compare(_: None) -> tuple[list[str], set[str]]:
    """Runs on every rank: what differs from one process, and the configs of the operator."""
    register_rule(scaled_add, **SCALED_ADD)
    register_rule(head_mean, **HEAD_MEAN)
    model, x = model_and_input()
    expected = train_alone(model, lambda module: module(x), TOLERANCE[torch.float64])
    captured = capture(model, (x,))
    task = PlanningTask(captured, load_cluster("cpu"))
    settings = task.settings(dist.get_world_size())
    space = make_space(captured, settings)
    plans = [
        point.plan
        for asked in (task, replace(task, recompute=True))
        for point in find_frontier(asked, dist.get_world_size()).thinned(6)
    ]
    plans += [
        Plan.of(space, settings, captured, space.random_strategy(seed))
        for seed in range(RANDOM_STRATEGIES)
    ]
    context = RankContext.make([2], torch.device("cpu"))
    wrong, used = [], set()
    for index, plan in enumerate(plans):
        module = parallelize(model, captured, plan, torch.device("cpu"), context)
        got = train(module, lambda module=module: module(x))
        found = list(differences(got, expected, TOLERANCE[torch.float64]))
        if found:
            wrong.append(f"strategy {index}: {found} under {labels(plan, 'custom')}")
        rows = make_space(captured, plan.settings).nodes()
        nodes = {row.target: row.name for row in rows}
        for name in ("scaled_add", "head_mean"):
            node = nodes[f"tensoropt_test.{name}.default"]
            used.add(f"{name} {dict(plan.choices.configs)[node]}")
    return wrong, used


def test_all_strategies_equal_one_process() -> None:
    for wrong, used in run_ranks(2, f"{HERE}:compare", None, 200):
        assert wrong == []
        splits = {"scaled_add ...0", "scaled_add n", "head_mean b", "head_mean h"}
        assert splits <= used, "the strategies split the operators in every way"


def disagree(rule_of_rank: list[str]) -> str:
    """The error of planning where ranks have registered different rules."""
    rule = rule_of_rank[dist.get_rank()]
    if rule:
        register_rule(scaled_add, **{**SCALED_ADD, "rule": rule})
    register_rule(head_mean, **HEAD_MEAN)
    model, x = model_and_input()
    try:
        tensoropt_torch.find_strategy(model, (x,), measure=False)
    except TensorOptError as error:
        return str(error)
    return ""


def test_ranks_with_different_rules_all_get_an_error() -> None:
    right = SCALED_ADD["rule"]
    for other in ("b n, b n, n -> b n", ""):
        errors = run_ranks(2, f"{HERE}:disagree", [right, other], 60)
        assert errors[0] == errors[1]
        assert "set of rules registered for operators of the model differs between" in errors[0]
        assert "register_rule with the same arguments on every rank" in errors[0]


def load_under_another_rule(_: None) -> str:
    register_rule(scaled_add, **SCALED_ADD)
    register_rule(head_mean, **HEAD_MEAN)
    model, x = model_and_input()
    plan = tensoropt_torch.find_strategy(model, (x,), measure=False)
    saved = Plan.from_json(plan.to_json())
    tensoropt_torch.parallelize(model, saved, (x,))
    register_rule(scaled_add, **{**SCALED_ADD, "saves": []})
    try:
        tensoropt_torch.parallelize(model, saved, (x,))
    except TensorOptError as error:
        return str(error)
    return ""


def test_a_plan_does_not_run_under_another_rule() -> None:
    (error,) = run_ranks(1, f"{HERE}:load_under_another_rule", None, 60)
    assert "made for another model" in error
    assert "register the same rules" in error
