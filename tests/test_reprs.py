"""What Python shows of the public objects: short, and what one wants to know."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Example, Frontier, Plan, TensorOptError
from tensoropt_torch.html_table import html_table
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.planner.baselines import Baseline
from tests.distributed.harness import run_ranks
from tests.measure.kept.test_hardware_profile import KEY
from tests.measure.runs.test_validation import rows

HERE = "tests.test_reprs"
LONGEST = 700


class Deep(nn.Module):
    """A loss over many layers: whatever lists them is long."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


@pytest.fixture(scope="module")
def example() -> Example:
    with torch.device("meta"):
        return Example(Deep(), (torch.zeros(64, 64),))


@pytest.fixture(scope="module")
def frontier(example: Example) -> Frontier:
    return tensoropt_torch.find_frontier(example, cluster="h100-8", num_devices=4)


def kib(size: float) -> str:
    """Bytes as they are shown, of sizes that this model has."""
    assert 10 * 1024 <= size < 1000 * 1024
    return f"{size / 1024:.4g} KiB"


def us(seconds: float) -> str:
    """Times likewise."""
    assert 100e-6 <= seconds < 1000e-6
    return f"{seconds * 1e6:.1f} us"


def shown(thing: Any, *parts: str) -> str:
    text = repr(thing)
    assert len(text) < LONGEST
    for part in parts:
        assert part in text
    return text


def test_a_frontier_shows_its_ends_and_its_guarantee(frontier: Frontier) -> None:
    low, high = frontier.smallest, frontier.fastest
    ends = [kib(low.memory_bytes), kib(high.memory_bytes)]
    times = [us(low.time_s), us(high.time_s)]
    count = f"Frontier({len(frontier)} points on 4 devices of 'h100-8'"
    shown(frontier, count, *ends, *times, str(frontier.guarantee))
    shown(frontier[1], f"FrontierPoint(1 of {len(frontier)}", kib(frontier[1].memory_bytes))


def test_plans_show_which_point_they_are(frontier: Frontier) -> None:
    for point in frontier:
        plan = point.plan
        where = f"point {point.index} of {len(frontier)}, {frontier.guarantee}"
        shown(plan, "4 devices of 'h100-8' (2 x 2)", us(plan.time_s), where)
    assert "of no frontier" in repr(replace(plan, frontier=()))
    figures = {"memory_bytes": 5 << 29, "time_s": 0.0125}
    shown(plan.with_part(**figures), "2.50 GiB per device, 12.500 ms a step")
    shown(plan.settings, "mesh_axes=((2, 0), (2, 0))")
    shown(plan.captured, "operators, 24 parameters", plan.fingerprint)


def test_results_are_summed_up(example: Example, frontier: Frontier) -> None:
    options: dict[str, Any] = {"cluster": "h100-8", "num_devices": 4}
    comparison = tensoropt_torch.compare(example, memory_limit=1e9, **options)
    fastest = us(comparison.ours.points[-1][1])
    text = shown(comparison, "4 devices, at most 953.7 MiB", f"TensorOpt {fastest}")
    assert all(row.name in text for row in comparison.baselines)
    shown(comparison.ours, f"'TensorOpt': {len(frontier)} points", fastest)
    assert repr(Baseline("ToFu", ())) == "Baseline('ToFu': no strategy)"
    explanation = tensoropt_torch.explain(example, **options)
    shown(explanation, f"4 devices: {len(explanation.operators)} operators")
    tradeoffs = tensoropt_torch.find_tradeoffs(
        example, cluster="h100-8", device_counts=[1, 2], objective="energy"
    )
    shown(tradeoffs, f"{len(tradeoffs)} points of memory, time and energy on 1, 2 devices")
    shown(tradeoffs.points[0], "num_devices=1")
    memory = tensoropt_torch.simulate_memory(example, frontier.knee.plan)
    shown(memory, f"rank 0: {kib(memory.peak_bytes)} in", "parameters")
    simulated = tensoropt_torch.simulate_frontier(frontier, max_points=2)[0]
    shown(simulated, f"peak {kib(simulated.peak_bytes)}; FrontierPoint(")
    shown(example, "Example(")


def test_measurements_are_summed_up() -> None:
    validation = rows([1.0, 1.1])
    shown(validation, "2 strategies", "step time 100.0%", "network time 50.0%", "memory 4.5%")
    cluster = tensoropt_torch.load_cluster("cpu")
    curves = tuple(("all_reduce", axes, ((1024.0, 1e-4),) * 50) for axes in range(1, 20))
    profile = HardwareProfile(KEY, cluster, ((2, 0),), curves)
    shown(profile, "2 processes on some CPU, mesh 2: 19 collectives, not complete")


class Cells(HTMLParser):
    """The texts of a table's cells, by row, and of its caption."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.caption = ""
        self.feed(html)
        assert not self.open, "a tag is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        links = [value or "" for name, value in attrs if name in ("src", "href")]
        assert all(link.startswith("data:") for link in links), "it needs something else"
        if tag == "img":
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag != "img":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] == "caption":
            self.caption += data
        elif self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_notebooks_show_a_frontier(frontier: Frontier) -> None:
    html = frontier._repr_html_()
    table = Cells(html)
    assert len(html) < 40_000
    assert html.startswith('<img alt="Cost frontier, from ')
    assert table.caption == frontier.title
    assert table.rows[0] == ["point", "memory per device", "step time", ""]
    named = {name: row for row in table.rows[1:] for name in row[3].split(", ")}
    for name in ("smallest", "knee", "fastest"):
        point = getattr(frontier, name)
        costs = [kib(point.memory_bytes), us(point.time_s)]
        assert named[name][:3] == [str(point.index), *costs]
    indices = [int(row[0]) for row in table.rows[1:]]
    assert indices == sorted(set(indices)) and len(indices) <= 15


def test_notebooks_show_a_table_without_matplotlib(
    frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert frontier._repr_html_().startswith("<table>")
    with pytest.raises(TensorOptError, match=r"a plot needs .*pip install jinja2 matplotlib"):
        frontier.plot()


def test_a_plot_has_all_points_and_names_some(frontier: Frontier) -> None:
    axes = frontier.plot()
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [point.memory_bytes / 2**30 for point in frontier]
    assert list(line.get_ydata()) == [point.time_s * 1e3 for point in frontier]
    assert {"smallest", "fastest"} <= {text.get_text() for text in axes.texts}
    assert frontier.plot(axes) is axes


def test_notebooks_show_a_plan(frontier: Frontier) -> None:
    plan = replace(frontier.knee.plan, peak_bytes=3 << 20)
    plan = plan.with_part(memory_bytes=5 << 29, time_s=0.0125)
    table = Cells(plan._repr_html_())
    facts = dict(table.rows)
    assert facts["devices"] == "4 devices of 'h100-8' (2 x 2)"
    assert facts["step time"] == "12.500 ms"
    assert facts["memory per device"] == "2.50 GiB"
    assert facts["simulated peak"] == "3 MiB"
    facts = dict(Cells(frontier.knee.plan._repr_html_()).rows)
    assert facts["frontier"].startswith(f"point {frontier.knee.index} of {len(frontier)}")
    assert facts["model"] == plan.fingerprint
    loaded = Plan.from_json(plan.to_json())
    assert repr(loaded) == repr(plan)


def test_tables_escape_what_they_show() -> None:
    table = Cells(html_table("a < b", ("<i>",), [["&amp;"], ["<b>"]]))
    assert table.caption == "a < b"
    assert table.rows == [["<i>"], ["&amp;"], ["<b>"]]


def show_module(_: None) -> tuple[str, int, int, str]:
    torch.manual_seed(0)
    model, args = Deep(), (torch.zeros(64, 64),)
    plan = tensoropt_torch.find_frontier(model, args, cluster="cpu", num_devices=2).smallest.plan
    module = tensoropt_torch.parallelize(model, plan)
    local = sum(p.to_local().numel() for p in module.parameters())
    whole = sum(p.numel() for p in model.parameters())
    return repr(module), local, whole, repr(nn.Sequential(module))


def test_a_parallel_module_shows_what_a_rank_holds() -> None:
    shown = run_ranks(2, f"{HERE}:show_module", None, 60)
    for rank, (text, local, whole, nested) in enumerate(shown):
        assert len(text) < LONGEST
        assert f"devices: 2 devices of 'cpu' (2), this is rank {rank}" in text
        assert f"49,920 numbers (195 KiB), of which {local:,} numbers" in text  # 12 (64 x 64 + 64)
        assert "plan: " in text and "point 0 of " in text and "inputs: replicated" in text
        assert "this is rank" in nested
        assert math.isclose(local, whole / 2, rel_tol=0.1)
