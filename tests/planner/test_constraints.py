"""Strategies that meet a user's constraints, against all strategies of small models."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import tensoropt_torch as to
from tensoropt_torch import Plan, SearchSettings, TensorOptError, cli
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.plan import constraints_of
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.constraint_costs import constraint_costs
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks
from tests.planner.model_file import MODEL_FILE

EXACT = SearchSettings(epsilon=0)
Holds = Callable[[dict[str, str]], bool]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32, bias=False)
        self.second = nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).sum()


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    with torch.device("meta"):
        return capture(Small(), (torch.zeros(64, 16),))


def task_of(captured: CapturedModel, pin: Any = None, forbid: Any = None) -> PlanningTask:
    cluster = to.load_cluster("h100-8")
    return PlanningTask(captured, cluster, constraints=constraints_of(pin, forbid), search=EXACT)


# Constraints, and what they mean in configs by name.
CASES: list[tuple[dict[str, Any], Holds]] = [
    ({"pin": {"first.weight": Shard(0)}}, lambda c: c["first.weight"] == "S0"),
    ({"pin": {"*.weight": Replicate()}}, lambda c: c["first.weight"] == c["second.weight"] == "R"),
    ({"pin": {"second": "k"}}, lambda c: c["second.linear_1"] == "k"),
    ({"pin": {"first*": "whole"}}, lambda c: c["first.weight"] == "R" and c["first.linear"] == "-"),
    (
        {"forbid": {"*": ["b", "b0"]}},
        lambda c: "b" not in (c["first.linear"], c["second.linear_1"]),
    ),
    (
        {"pin": {"first.weight": "S1"}, "forbid": {"second.linear*": "whole"}},
        lambda c: c["first.weight"] == "S1" and c["second.linear_1"] != "-",
    ),
]


@pytest.mark.parametrize(
    ("constraints", "holds"), CASES, ids=[str(constraints) for constraints, _ in CASES]
)
def test_the_frontier_is_that_of_all_strategies_that_meet_the_constraints(
    captured: CapturedModel, constraints: dict[str, Any], holds: Holds
) -> None:
    """Every assignment of configs to nodes is searched by itself."""
    space = make_space(captured, task_of(captured).settings(2))
    rows = space.nodes()
    points = []
    for choice in itertools.product(*(range(len(row.configs)) for row in rows)):
        configs = {row.name: row.configs[c] for row, c in zip(rows, choice, strict=True)}
        if holds(configs):
            masks = [
                [i == c for i in range(len(r.configs))] for r, c in zip(rows, choice, strict=True)
            ]
            if space.blocked_node(masks) is None:
                points += EXACT.run(space, allowed=masks).points
    assert points
    best = pareto(points)
    found = find_frontier(task_of(captured, **constraints), 2)
    assert [p.memory_bytes for p in found] == pytest.approx([m for m, _ in best])
    assert [p.time_s for p in found] == pytest.approx([t for _, t in best])
    whole = pareto([(p.memory_bytes, p.time_s) for p in find_frontier(task_of(captured), 2)])
    for memory, time_s in best:
        assert any(m <= memory * (1 + 1e-9) and t <= time_s * (1 + 1e-9) for m, t in whole)


def pareto(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for memory, time_s in sorted(points):
        if not kept or time_s < kept[-1][1] * (1 - 1e-9):
            kept.append((memory, time_s))
    return kept


def test_no_random_strategy_that_meets_the_constraints_beats_the_frontier() -> None:
    captured, constraints = gpt(), {"blocks.*.qkv.weight": Shard(0), "blocks.*.scaled*": "h"}
    free, pinned = task_of(captured), task_of(captured, constraints)
    frontier = find_frontier(pinned, 4)
    space, restricted = (make_space(captured, t.settings(4)) for t in (free, pinned))
    rows = space.nodes()
    for seed in range(40):
        strategy = restricted.random_strategy(seed, random.Random(seed).random())
        for row, config in zip(rows, strategy.config, strict=True):
            label = row.configs[config]
            if row.name.endswith("qkv.weight"):
                # Of the weight [3 * 64, 64], which the graph sees as [3, 64, 64].
                assert set(label.split(",")) <= {"S0", "S1"}, f"seed {seed}"
            if "scaled_dot" in row.name:
                assert "h" in label.split(","), f"seed {seed}"
        assert any(
            p.memory_bytes <= strategy.memory * (1 + 1e-9)
            and p.time_s <= strategy.time * (1 + 1e-9)
            for p in frontier
        ), f"seed {seed}"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int = 255) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(64, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), x.flatten())


def gpt(vocabulary: int = 255) -> CapturedModel:
    with torch.device("meta"):
        return capture(Gpt(vocabulary), (torch.zeros(8, 16, dtype=torch.long),))


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        ({"pin": {"embd.weight": "S0"}}, "matches no parameter, operator or module; did you mean"),
        ({"pin": {"embed.weight": "S0"}}, "4 does not divide dim 0 of size 3, and"),
        ({"pin": {"embed.weight": "S2"}}, "it has 2 dims, there is no dim 2"),
        ({"pin": {"embed.weight": "S1,R,R"}}, "there are 2 mesh axes, not 3"),
        ({"pin": {"embed.weight": "n"}}, "matches parameters only"),
        ({"pin": {"head.linear*": "S0"}}, "matches operators only"),
        ({"pin": {"head": "heads"}}, "has such dims to split; allowed:"),
        ({"pin": {"head": "k,b0"}}, "is written 'b0,k'"),
        ({"pin": {"x": "R"}}, "give inputs instead"),
        ({"pin": {"*.out.weight": "S0", "blocks.0.*.weight": "S1"}}, "contradicts pin '*.out"),
        ({"pin": {"*.out.weight": "S0"}, "forbid": {"*.weight": "S0"}}, "at parameter 'blocks.0.o"),
        ({"forbid": {"embed.weight": "S0,S1,whole"}}, "nothing else is left"),
    ],
)
def test_what_cannot_be_met_is_named(constraints: dict[str, Any], words: str) -> None:
    with pytest.raises(TensorOptError) as raised:
        find_frontier(task_of(gpt(vocabulary=3), **constraints), 4)
    assert words in str(raised.value)
    given = {**constraints.get("pin", {}), **constraints.get("forbid", {})}
    assert any(f"'{pattern}'" in str(raised.value) for pattern in given)


def test_pins_that_exclude_each_other_only_together_are_named() -> None:
    """A view follows what it gets: neighbours have to split the same dim."""
    pins = {"blocks.0.transpose": "d1,d1", "blocks.0.reshape": "d0,d0", "blocks.1.out": "n"}
    with pytest.raises(TensorOptError) as raised:
        find_frontier(task_of(gpt(), pins), 4)
    message = str(raised.value)
    assert "cannot be met together" in message and "blocks.1" not in message
    assert "'blocks.0.transpose'" in message and "'blocks.0.reshape'" in message


def test_a_plan_keeps_its_constraints(tmp_path: Path) -> None:
    captured = gpt()
    plan = find_frontier(task_of(captured, {"embed.weight": "S1"}), 4).fastest.plan
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    (written,) = json.loads((tmp_path / "plan.json").read_text())["settings"]["wishes"]
    assert written == {"kind": "pin", "pattern": "embed.weight", "value": "S1"}
    assert loaded == plan and [str(w) for w in loaded.settings.constraints] == [
        "pin 'embed.weight' = 'S1'"
    ]
    free = find_frontier(task_of(captured), 4).fastest.plan
    assert any(change.name == "constraints" for change in free.diff(plan).settings)


def test_constraint_costs_are_those_of_the_searches(captured: CapturedModel) -> None:
    pin = {"first.weight": "R", "second.weight": "R"}
    pinned = find_frontier(task_of(captured, pin), 2)
    limit = pinned.smallest.memory_bytes
    costs = constraint_costs(pinned.fastest.plan, limit, EXACT)
    parts = [pin, {"second.weight": "R"}, {"first.weight": "R"}, None]
    assert len(costs.rows) == len(parts)
    for row, part in zip(costs.rows, parts, strict=True):
        frontier = find_frontier(task_of(captured, part), 2, [limit])
        assert row.least_memory_bytes == pytest.approx(frontier.least_memory_bytes)
        assert row.least_time_s == pytest.approx(frontier.fastest.time_s)
        assert row.time_s == pytest.approx(frontier.at(limit).time_s)
    assert costs.free.least_memory_bytes < costs.constrained.least_memory_bytes


def test_the_command_pins_and_says_what_that_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL_FILE)
    command = ["plan", f"{tmp_path}/model.py:build", "--cluster", "h100-8", "--devices", "2"]
    assert cli.main([*command, "--pin", "*weight=R", "--forbid", "bias=S0"]) == 0
    told = capsys.readouterr().out
    rows = re.findall("│ (.*?) +│", told)  # cells are wrapped
    assert "What the constraints cost" in told and "without pin '*weight' =" in rows
    assert {"all", "none"} <= set(rows)
    assert cli.main([*command, "--pin", "weight"]) == 2
    assert "--pin weight has no '='" in capsys.readouterr().err


def placements_of_a_step(_: Any) -> list[tuple[str, str]]:
    """On one rank: the parameters' placements, after a step with finite gradients."""
    torch.manual_seed(0)
    model, x = Gpt(), torch.arange(128).view(8, 16)
    alone = model(x).item()
    pin = {"embed.weight": Shard(1), "head.weight": Replicate(), "blocks.*.qkv.weight": "S0"}
    plan = to.find_strategy(model, (x,), measure=False, pin=pin, forbid={"*.out.weight": "R"})
    parallel = to.parallelize(model, plan, (x,))
    loss = parallel(x)
    loss.backward()
    assert abs(loss.item() - alone) < 1e-4, (loss.item(), alone)
    return [
        (name, str(parameter.placements))
        for name, parameter in parallel.named_parameters()
        if isinstance(parameter, DTensor)
    ]


# Whole blocks of the weight, or a part of each.
FUSED = (str((Shard(0),)), str((_StridedShard(0, split_factor=3),)))


def test_a_pinned_plan_stores_parameters_so() -> None:
    for found in run_ranks(2, "tests.planner.test_constraints:placements_of_a_step", None, 200):
        placements = dict(found)
        assert placements["embed.weight"] == str((Shard(1),))
        assert placements["head.weight"] == str((Replicate(),))
        assert placements["blocks.1.qkv.weight"] in FUSED
        assert placements["blocks.0.out.weight"] != str((Replicate(),))
