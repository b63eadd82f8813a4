"""What is told of plans in stages, and what stands beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import (
    Cluster,
    Example,
    StagedPlan,
    TensorOptError,
    compare,
    explain,
    find_frontier,
    find_stages,
    find_strategy,
    find_tradeoffs,
    load_cluster,
)
from tensoropt_torch.cli import main as cli
from tensoropt_torch.planner.stage_timeline import lanes_of, timeline_of
from tensoropt_torch.staging.grids import GRIDS, layer_cuts, layers_of
from tensoropt_torch.telling.stages import details_of_stages, stage_rows

DEVICES = 4
OPTIONS = {"max_micro_batches": 4, "max_stages": 2, "num_devices": DEVICES}


class Layers(nn.Module):
    """A list of layers between two others."""

    def __init__(self, count: int = 4, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.last = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x).relu()
        return (self.last(x) - y).square().mean()


def example() -> Example:
    """Also of the command line."""
    return Example(Layers(), (torch.zeros(32, 16), torch.zeros(32, 16)))


def slow_cluster() -> Cluster:
    """Two machines of two devices, between which little is sent in a step's time."""
    cluster = load_cluster("cpu")
    inner = cluster.levels[-1]
    outer = replace(
        inner, name="machine", count=2, bandwidth_bytes_per_s=2e6, latency_s=1e-5, collectives={}
    )
    return replace(cluster, levels=(outer, replace(inner, count=2)))


@pytest.fixture(scope="module")
def plan() -> StagedPlan:
    return find_stages(
        example(), stages=2, micro_batches=4, num_devices=DEVICES, cluster=slow_cluster()
    )


def test_rows_are_those_of_the_schedule(plan: StagedPlan) -> None:
    step, rows = timeline_of(plan), stage_rows(plan)
    assert [row.in_flight for row in rows] == [(2,), (1,)] == [(n,) for n in step.in_flight]
    for row, busy_s in zip(rows, step.busy_s, strict=True):
        assert row.alone_s == pytest.approx(busy_s)
        assert row.waits == pytest.approx(1 - busy_s / step.step_s)
    assert [row.peak_bytes for row in rows] == list(plan.peaks)
    assert rows[0].layers == ("first to layers.1",) and rows[1].layers == ("layers.2 to last",)
    lanes = lanes_of(plan)
    assert lanes[1].order == "F0 B0 F1 B1 F2 B2 F3 B3"
    for lane in lanes:
        assert len(lane.pieces) == 8
        assert sum(piece.width for piece in lane.pieces) == pytest.approx(
            1 - rows[lane.stage].waits
        )


def test_figures_of_all_stages_are_those_of_the_plan(plan: StagedPlan) -> None:
    details = details_of_stages(plan)
    assert sum(details.time.values()) == pytest.approx(plan.time_s)
    assert sum(details.memory.values()) == pytest.approx(plan.memory_bytes)
    parameters = sum(parameter.numel() * 4 for parameter in Layers().parameters())
    assert sum(one.num_bytes for one in details.storage) == parameters
    summary = plan.summary()
    assert summary.startswith("2 stages of 2 devices each run 4 micro-batches in turn (1f1b), and ")
    assert "Stage 0 (first to layers.1): " in summary and "Stage 1 (layers.2 to last): " in summary
    assert "stage 1, layers.2 to last" in str(plan) and "layers.2 to last" in plan._repr_html_()
    with pytest.raises(TensorOptError, match="no model at hand"):
        plan.without_models.summary()


def test_plans_with_and_without_stages_are_compared(plan: StagedPlan) -> None:
    other = find_stages(
        example(), stages=["layers.3"], micro_batches=8, num_devices=DEVICES, cluster=slow_cluster()
    )
    diff = plan.diff(other)
    changed = {change.name: (change.before, change.after) for change in diff.settings}
    assert changed["micro-batches"] == ("4", "8")
    assert changed["layers of stage 1"] == ("layers.2 to last", "layers.3 to last")
    assert diff.num_choices > 5 and diff.time_s == (plan.time_s, other.time_s)
    whole = find_strategy(example(), num_devices=DEVICES, cluster=slow_cluster())
    for one, another, stages in ((whole, plan, ("1", "2")), (plan, whole, ("2", "1"))):
        diff = one.diff(another)
        found = {change.name: (change.before, change.after) for change in diff.settings}
        assert found["stages"] == stages and not diff.choices
        assert diff.title == "Operators and parameters are split over other numbers of devices"
    with pytest.raises(TensorOptError, match="different numbers of devices: 4 and 2"):
        plan.diff(find_stages(example(), stages=2, num_devices=2, micro_batches=4, cluster="cpu"))


def test_it_is_explained(plan: StagedPlan) -> None:
    why = explain(plan)
    text = str(why)
    assert "has most to do" in text and "needs the most memory" in text
    assert "for about 20% with 4 micro-batches" in text
    assert "Part 1, of stage 1:" in text and len(why.parts) == 2
    assert all(part.num_considered > 0 for part in why.parts)


def test_grids_of_stages_stand_beside_the_frontier(tmp_path: Path) -> None:
    comparison = compare(example(), cluster=slow_cluster(), **OPTIONS)
    by_name = {one.name: one for one in comparison.baselines}
    ours = comparison.pick(comparison.ours)
    assert ours is not None
    for name, (of_stage, _) in GRIDS.items():
        found, alone = comparison.pick(by_name[name]), comparison.pick(by_name[of_stage])
        assert found is not None and alone is not None and found[1] <= alone[1]
        plans = [by_name[name].plan(n) for n in range(len(by_name[name].points))]
        staged = [one for one in plans if isinstance(one, StagedPlan)]
        assert staged and {one.stages for one in staged} == {2}
        for one in staged:
            assert stage_rows(one)[1].layers == ("layers.2 to last",)
        assert ours[1] <= 1.03 * found[1]
    best = comparison.pick(by_name["best baseline"])
    assert best is not None
    assert best[1] == min(
        point[1] for one in comparison.baselines if (point := comparison.pick(one)) is not None
    )
    pytest.importorskip("jinja2")
    comparison.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Megatron grid (data x tensor x pipeline)" in page
    assert "2 stages run 4 micro-batches in turn." in page


def test_pages_show_the_schedule(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    frontier = find_frontier(example(), cluster=slow_cluster(), **OPTIONS)
    point = next(point for point in reversed(frontier) if point.stages > 1)
    frontier.report(tmp_path / "page.html", memory_limit=point.memory_bytes)
    page = (tmp_path / "page.html").read_text()
    assert "The order in which stages run" in page and "waiting for other stages" in page
    assert 'class="lane-name">stage 1<' in page


def test_tradeoffs_may_be_in_stages() -> None:
    found = find_tradeoffs(
        example(),
        device_counts=[4],
        objective="device_count",
        cluster=slow_cluster(),
        max_micro_batches=4,
        max_stages=2,
    )
    assert any(isinstance(point.plan, StagedPlan) for point in found)


def test_commands_take_plans_in_stages(
    plan: StagedPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "plan.json")
    plan.save(saved)
    model = f"{__file__}:example"
    cli(["show", saved, "--model", model])
    shown = capsys.readouterr().out
    assert "stage 0 0" in shown and "Stage 1 (layers.2 to last)" in shown
    cli(["diff", saved, saved])
    assert "step time" in capsys.readouterr().out
    cli(["memory", model, "--plan", saved, "--rank", "2"])
    assert "Rank 2 has at most" in capsys.readouterr().out
    cli(["explain", model, "--plan", saved])
    assert "has most to do" in capsys.readouterr().out


def test_layers_are_members_of_lists() -> None:
    names = ["table.weight", "h.0.a.1.weight", "h.0.b", "h.1.a.1.weight", "head.0.weight"]
    assert list(layers_of(names)) == ["h.0", "h.1"]
    captured = tensoropt_torch.frontend.capture(Layers(7), example().args)
    assert layer_cuts(captured, 3) == ["layers.3", "layers.5"]
    with pytest.raises(TensorOptError, match="fewer than 8 stages"):
        layer_cuts(captured, 8)
