"""What is said of a plan is what searches and cost tables say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import planning_time
from benchmarks.models import catalogue, transformer
from examples import gpt
from tensoropt_torch import SearchSettings, TensorOptError, cli, explain, load_cluster
from tensoropt_torch import find_frontier as find_frontier_of
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.plan import constraints_of
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.constraint_costs import constraint_costs
from tensoropt_torch.planner.explanation import Explanation
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.planner.why import (
    MOST_PRINTED,
    NOTEWORTHY,
    WhyPlan,
    explain_plan,
    faster_network,
)
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.telling.collectives import num_shards
from tensoropt_torch.units import format_bytes
from tests.planner.model_file import MODEL_FILE

DEVICES = 4
ERROR = 0.01  # of a search


def wide_mlp() -> Any:
    layers = [nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*layers), (torch.zeros(64, 4096),)


def small_gpt() -> Any:
    config = gpt.GPTConfig(vocab_size=4096, n_layer=3, n_head=8, n_embd=512)
    tokens = torch.zeros(2, 16, 128, dtype=torch.long)
    return gpt.GPT(config), (tokens[0], tokens[1])


def paper_transformer() -> Any:
    config = transformer.TransformerConfig(
        vocab_size=4096, n_layer=2, n_head=16, head_size=64, n_embd=512, n_hidden=4096
    )
    tokens = torch.zeros(3, 16, 64, dtype=torch.long)
    return transformer.Transformer(config), tuple(tokens)


MODELS: Mapping[str, Callable[[], Any]] = {
    "mlp": wide_mlp,
    "gpt": small_gpt,
    "transformer": paper_transformer,
}


@pytest.fixture(scope="module", params=MODELS)
def why(request: pytest.FixtureRequest) -> WhyPlan:
    with torch.device("meta"):
        captured = capture(*MODELS[request.param]())
    frontier = find_frontier(PlanningTask(captured, load_cluster("h100-8")), DEVICES)
    return explain(frontier.knee.plan)


def test_some_decisions_matter_and_are_told(why: WhyPlan) -> None:
    assert 0 < len(why.decisions) <= why.num_considered
    text = str(why)
    for decision in why.decisions:
        shown = decision in why.decisions[:MOST_PRINTED]
        assert (decision.sentence(why.plan) in text) == shown
        assert decision.sentence(why.plan) in why.sentences
        if decision.in_memory is not None:
            assert decision.in_memory.time_s > why.plan.time_s * (1 + NOTEWORTHY)


def test_alternatives_decide_otherwise_and_cost_what_is_said(why: WhyPlan) -> None:
    assert why.plan.captured is not None
    space = make_space(why.plan.captured, why.plan.settings)
    own = dict(why.plan.choices.configs)
    sizes = [size for size, _ in why.plan.settings.mesh_axes]
    for decision in why.decisions:
        for other in (decision.in_memory, decision.in_time):
            if other is None:
                continue
            found = dict(other.choices.configs)
            for name in decision.names:
                if decision.operator == "parameter":
                    assert num_shards(found[name], sizes) != num_shards(own[name], sizes)
                else:
                    assert sorted(found[name].split(",")) != sorted(own[name].split(","))
            strategy = other.choices.strategy(space)
            time_s = space.compute_time(strategy) + space.network_time(strategy)
            assert other.time_s == pytest.approx(time_s)
        if decision.in_memory is not None:
            assert decision.in_memory.memory_bytes <= why.plan.memory_bytes * (1 + 1e-9)
        if decision.in_time is not None:
            assert decision.in_time.time_s <= why.plan.time_s * (1 + 1e-9)


def test_no_random_strategy_that_decides_otherwise_is_better(why: WhyPlan) -> None:
    """Drawn from the strategies in which every name of a decision has another config."""
    assert why.plan.captured is not None
    own = dict(why.plan.choices.configs)
    sizes = [size for size, _ in why.plan.settings.mesh_axes]
    for decision in why.decisions[:3]:
        space = make_space(why.plan.captured, why.plan.settings)

        def kind(name: str, label: str, of: str = decision.operator) -> Any:
            return num_shards(label, sizes) if of == "parameter" else sorted(label.split(","))

        space.restrict_to(
            [
                [
                    row.name not in decision.names
                    or kind(row.name, label) != kind(row.name, own[row.name])
                    for label in row.configs
                ]
                for row in space.nodes()
            ]
        )
        for seed in range(10):
            strategy = space.random_strategy(seed, seed / 10)
            if strategy.memory <= why.plan.memory_bytes:
                assert decision.in_memory is not None, f"seed {seed}"
                least = decision.in_memory.time_s
                assert strategy.time >= least / (1 + ERROR) * (1 - 1e-9), f"seed {seed}"
            assert strategy.memory >= decision.least_memory_bytes * (1 - 1e-9), f"seed {seed}"


def test_memory_is_read_off_the_frontier(why: WhyPlan) -> None:
    for change in why.memory:
        assert (change.memory_bytes, change.time_s) in why.plan.frontier
        if change.memory_bytes > why.plan.memory_bytes:
            assert change.time_s < why.plan.time_s
        else:
            assert change.time_s > why.plan.time_s


def test_the_network_is_that_of_another_cluster(why: WhyPlan) -> None:
    captured = why.plan.captured
    assert captured is not None
    cluster = load_cluster("h100-8")
    for change in why.network:
        levels = tuple(
            replace(
                level,
                bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * change.factor,
                latency_s=level.latency_s / change.factor,
                collectives={
                    name: replace(
                        speed,
                        bandwidth_bytes_per_s=speed.bandwidth_bytes_per_s * change.factor,
                        latency_s=speed.latency_s / change.factor,
                    )
                    for name, speed in level.collectives.items()
                },
            )
            for level in cluster.levels
        )
        task = PlanningTask(captured, replace(cluster, levels=levels))
        limit = why.plan.memory_bytes
        picked = find_frontier(task, DEVICES, [limit]).at(limit)
        assert change.best.time_s == pytest.approx(picked.time_s, rel=ERROR)
        space = make_space(captured, task.settings(DEVICES))
        strategy = why.plan.choices.strategy(space)
        compute, network = space.compute_time(strategy), space.network_time(strategy)
        assert change.time_s == pytest.approx(compute + network)
        assert change.time_s >= change.best.time_s / (1 + ERROR)


def test_measured_curves_are_scaled_as_well(captured_mlp: CapturedModel) -> None:
    settings = PlanningTask(captured_mlp, load_cluster("h100-8")).settings(2)
    measured = (("all_reduce", 1, ((1024.0, 2e-3), (2048.0, 4e-3))),)
    scaled = faster_network(replace(settings, measured=measured), 2.0)
    assert scaled.measured == (("all_reduce", 1, ((1024.0, 1e-3), (2048.0, 2e-3))),)


@pytest.fixture(scope="module")
def captured_mlp() -> CapturedModel:
    with torch.device("meta"):
        return capture(*wide_mlp())


def test_constraints_hold_in_alternatives(captured_mlp: CapturedModel) -> None:
    constraints = constraints_of({"*.weight": "whole"}, None)
    task = PlanningTask(captured_mlp, load_cluster("h100-8"), constraints=constraints)
    why = explain(find_frontier(task, 2).fastest.plan)
    assert all(
        decision.operator != "parameter" or "bias" in decision.names[0]
        for decision in why.decisions
    )
    for decision in why.decisions:
        for other in filter(None, (decision.in_memory, decision.in_time)):
            assert dict(other.choices.configs)["0.0.weight"] == "R"


def test_what_constraints_cost_is_told(captured_mlp: CapturedModel) -> None:
    constraints = constraints_of({"*.weight": "whole"}, {"*.bias": "S0"})
    task = PlanningTask(captured_mlp, load_cluster("h100-8"), constraints=constraints)
    plan = find_frontier(task, 2).fastest.plan
    why, costs = explain(plan), constraint_costs(plan)
    assert why.constraints is not None and why.constraints.rows == costs.rows
    sentences = [text for text in why.sentences if text.startswith("Without ")]
    pin, forbid = map(str, constraints)
    assert [text.split(" a step ")[0] for text in sentences] == [
        f"Without {pin}",
        f"Without {forbid}",
        f"Without {pin} and {forbid}",
    ]
    free = find_frontier(PlanningTask(captured_mlp, load_cluster("h100-8")), 2)
    assert format_bytes(free.least_memory_bytes) in sentences[-1]
    assert all(f"- {text}" in str(why) for text in sentences)


def test_a_plan_without_its_model_is_refused(why: WhyPlan) -> None:
    with pytest.raises(TensorOptError, match="has no model at hand"):
        explain(replace(why.plan, captured=None))


def test_one_function_explains_plans_and_models(captured_mlp: CapturedModel) -> None:
    point = find_frontier(PlanningTask(captured_mlp, load_cluster("h100-8")), 2).fastest
    search = SearchSettings(epsilon=0.0)
    why = explain(point.plan, search=search)
    assert why.decisions == explain_plan(point.plan, search).decisions
    with torch.device("meta"):
        model, args = wide_mlp()
    assert isinstance(explain(model, args, cluster="h100-8", num_devices=2), Explanation)


@pytest.mark.parametrize(
    ("args", "keywords", "named"),
    [
        ((), {"cluster": "h100-8"}, "cluster"),
        ((), {"num_devices": 2}, "num_devices"),
        (((1,),), {"search": SearchSettings()}, "args"),
    ],
)
def test_what_a_plan_has_of_its_own_is_refused_beside_it(
    why: WhyPlan, args: tuple[Any, ...], keywords: dict[str, Any], named: str
) -> None:
    with pytest.raises(TensorOptError, match=rf"explain\(\) of a plan got {named}, which the plan"):
        explain(why.plan, *args, **keywords)


def test_the_command_prints_the_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL_FILE)
    model, plan = f"{tmp_path}/model.py:build", f"{tmp_path}/plan.json"
    common = ["--cluster", "h100-8", "--devices", "2"]
    assert cli.main(["plan", model, *common, "--output", plan]) == 0
    capsys.readouterr()
    assert cli.main(["explain", model, "--plan", plan]) == 0
    assert "decisions matter" in capsys.readouterr().out


DOCUMENT = Path(__file__).parents[2] / "docs" / "why-this-plan.md"
# What the document prints: the model, the cluster, options and the point.
PRINTED: Mapping[str, tuple[Any, str, dict[str, Any], str]] = {
    "GPT-2": (planning_time.gpt2, "h100-8", {}, "knee"),
    "Transformer": (catalogue.transformer, "paper-2x8-v100", {}, "knee"),
    "Llama": (catalogue.llama, "h100-8", {"recompute": True}, "limit"),
}


def without_seconds(text: str) -> str:
    return re.sub(r"searched in [^)]*", "searched", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_the_document_prints_what_is_said(name: str) -> None:
    make, cluster, options, picked = PRINTED[name]
    with torch.device("meta"):
        model, args = make()
    frontier = find_frontier_of(model, args, cluster=cluster, **options)
    limit = 0.9 * load_cluster(cluster).device.memory_bytes
    point = frontier.knee if picked == "knee" else frontier.at(memory_bytes=limit)
    assert without_seconds(str(point.explain())) in without_seconds(DOCUMENT.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_the_document_prints_what_changes(name: str) -> None:
    make, cluster, options, _ = PRINTED[name]
    with torch.device("meta"):
        model, args = make()
    frontier = find_frontier_of(model, args, cluster=cluster, **options)
    found = frontier.smallest.plan.diff(frontier.fastest.plan)
    blocks = DOCUMENT.read_text().split("```")
    (block,) = (block for block in blocks if f"{found.title}\n" in block)
    printed = [
        tuple(cell.strip() for cell in line.split("│")[1:4])
        for line in block.splitlines()
        if line.startswith("│")
    ]
    said = {(c.name, c.before, c.after) for c in found.folded_changes}
    assert printed and set(printed) <= said
