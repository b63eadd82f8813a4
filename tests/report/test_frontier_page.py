"""The page of a frontier says what the frontier says."""

from __future__ import annotations

import copy
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tensoropt_torch
from tensoropt_torch import Example, Frontier, TensorOptError
from tensoropt_torch.planner.baselines import Comparison
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.planner.frontier_page import Additions, frontier_page
from tensoropt_torch.planner.points import BEST, knee_index
from tensoropt_torch.telling.details import details_of
from tensoropt_torch.telling.provenance import provenance
from tensoropt_torch.units import format_bytes, format_part, format_share, format_step
from tests.distributed.models import GPT, GPTConfig
from tests.report.reading import ReadPage

LIMIT = 1.05 * 2**30
COUNTS = [1, 8]


@pytest.fixture(scope="module")
def example() -> Example:
    config = GPTConfig(n_layer=3, n_head=12, n_embd=768, vocab_size=50257, block_size=256)
    with torch.device("meta"):
        tokens = torch.zeros(16, 256, dtype=torch.long)
        return Example(GPT(config), (tokens, tokens))


@pytest.fixture(scope="module")
def comparison(example: Example) -> Comparison:
    return tensoropt_torch.compare(example, cluster="h100-8", num_devices=8, memory_limit=LIMIT)


@pytest.fixture(scope="module")
def counts(example: Example) -> list[ProfileRow]:
    return tensoropt_torch.profile(
        example, device_counts=COUNTS, memory_limit=LIMIT, cluster="h100-8"
    )


@pytest.fixture(scope="module")
def page(
    comparison: Comparison, counts: list[ProfileRow], tmp_path_factory: pytest.TempPathFactory
) -> ReadPage:
    path = tmp_path_factory.mktemp("report") / "report.html"
    comparison.report(path, counts=counts)
    return ReadPage.of(path)


def test_the_page_needs_nothing_else(page: ReadPage) -> None:
    assert all(link.startswith("#") for link in page.links)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_headings_have_an_order(page: ReadPage) -> None:
    levels = [level for level, _ in page.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_all_points_are_in_a_table(page: ReadPage, comparison: Comparison) -> None:
    rows = page.table("Cost frontier on")
    assert [[row[0], row[1], row[3]] for row in rows] == [
        [str(index), format_bytes(memory), format_step(time_s)]
        for index, (memory, time_s) in enumerate(comparison.ours.points)
    ]
    assert comparison.picks is not None
    pick = comparison.picks[comparison.ours.name]
    assert pick is not None
    assert rows[pick.index][2] == format_bytes(pick.peak_bytes)
    # The page has those of the ends and of the knee simulated as well.
    simulated = {index for index, row in enumerate(rows) if not row[2].startswith("about ")}
    assert simulated >= {0, knee_index(comparison.ours.points), len(rows) - 1}
    assert rows[pick.index][4] == f"{16 * 256 / pick.time_s:,.0f}"


def test_baselines_stand_beside_the_frontier(page: ReadPage, comparison: Comparison) -> None:
    rows = {row[0]: row[1:] for row in page.table("Beside other strategies")}
    others = [baseline for baseline in comparison.baselines if baseline.name != BEST]
    assert list(rows) == ["TensorOpt", *(baseline.title for baseline in others)]
    assert comparison.picks is not None
    for baseline in (comparison.ours, *others):
        pick = comparison.picks.get(baseline.name)
        if not baseline.points:
            assert rows[baseline.title] == ["no strategy for this model"]
            continue
        row = rows[baseline.title]
        assert all(row)
        kept = baseline.points[pick.index if pick else 0][0]
        least = "" if pick else "at least "
        assert row[0] == f"{least}{format_bytes(kept)}"
        assert row[1] == (format_bytes(pick.peak_bytes) if pick else "not simulated")
        assert row[2] == (format_step(pick.time_s) if pick else "does not fit")
        assert row[-1] == baseline.plan(pick.index if pick else 0).summary()
        if pick is None:
            over = f"{format_bytes(kept - LIMIT)} above the limit: "
            assert row[4].startswith("does not fit: it keeps at least ")
            assert over in row[4] or "and its simulated peak is above the limit: " in row[4]
        elif baseline is not comparison.ours:
            assert f"than {baseline.title}" in row[4] or f"as {baseline.title}" in row[4]


def test_the_page_says_what_less_memory_would_cost(example: Example, tmp_path: Path) -> None:
    frontier = tensoropt_torch.find_frontier(
        example, cluster="h100-8", num_devices=8, recompute=True
    )
    points = [(point.memory_bytes, point.time_s) for point in frontier]
    most, fastest = points[-1]
    frontier.report(tmp_path / "r.html", memory_limit=most)
    text = (tmp_path / "r.html").read_text()
    found = re.search(r"If a device keeps (\d+) MiB less, the fastest plan", text)
    assert found is not None, [format_bytes(memory) for memory, _ in points]
    less = int(found[1]) * 2**20
    assert most / 12.5 < less <= most / 5  # 1, 2 or 5 times a power of ten
    memory, time_s = [point for point in points if point[0] <= most - less][-1]
    assert (
        f"{found[0]} keeps {format_bytes(memory)} and takes {format_step(time_s)}, "
        f"{100 * (time_s / fastest - 1):.0f}% slower than this one: it "
    ) in text
    memory, time_s = points[knee_index(points)]
    knee = f"keeps {format_bytes(memory)} per device, {format_step(time_s)} a step"
    assert re.search(rf"<dt>knee</dt><dd>{knee} \(point \d+\)\. Here the line turns", text)


def test_the_page_names_what_runs_again(example: Example, tmp_path: Path) -> None:
    frontier = tensoropt_torch.find_frontier(
        example, cluster="h100-8", num_devices=8, recompute=True
    )
    frontier.report(tmp_path / "r.html", memory_limit=frontier.smallest.memory_bytes)
    text = (tmp_path / "r.html").read_text()
    details = details_of(frontier.smallest.plan)
    most, seconds = next(iter(details.run_again.items()))
    whole = details.time["operators again in backward"]
    assert sum(details.run_again.values()) == pytest.approx(whole)
    forward = details.time["operators"] / 3
    described = details.description
    assert (
        f"{format_share(whole / forward)} of the time of forward runs again in backward: "
        f"{described.num_recomputed} of {described.num_operators} operators, {format_part(whole)} "
        f"of a forward of {format_part(forward)}; most of it {most} ({format_part(seconds)})"
    ) in text


def test_the_page_says_what_is_stored_and_what_moves_most(tmp_path: Path) -> None:
    frontier = frontier_of(width=64, batch=32)
    frontier.report(tmp_path / "r.html", memory_limit=frontier.smallest.memory_bytes)
    text = (tmp_path / "r.html").read_text()
    details = details_of(frontier.smallest.plan)
    for name, whole in details.whole.items():
        held = details.memory[name]
        share = format_share(held / whole)
        assert f"{share} of the {name} ({format_bytes(held)} of {format_bytes(whole)})" in text
    received: dict[str, float] = {}
    for one in details.collectives:
        received[one.name] = received.get(one.name, 0.0) + one.received_bytes
    most = max(received, key=lambda name: received[name])
    said = re.search(r"Most bytes are moved by ([^:]*): a device receives ([^ ]* [^ ]*) in", text)
    assert said is not None
    assert most in said[1] and said[2] == format_bytes(received[most])


def test_where_nothing_fits_with_less_memory_the_page_says_so(tmp_path: Path) -> None:
    frontier = frontier_of()
    limit = frontier.smallest.memory_bytes * 1.001
    frontier.report(tmp_path / "r.html", memory_limit=limit)
    least = format_bytes(frontier.smallest.memory_bytes)
    text = (tmp_path / "r.html").read_text()
    assert re.search(
        rf"No plan keeps [\d.]+ MiB less than that on a device: the least .* is {least}\.", text
    )


def test_numbers_of_devices_have_times_and_costs(page: ReadPage, counts: list[ProfileRow]) -> None:
    rows = page.table("Least step time")
    one, eight = counts
    assert not one.feasible and eight.time_s is not None
    assert rows[0] == ["1 device", f"does not fit: needs {format_bytes(one.least_memory_bytes)}"]
    cluster = tensoropt_torch.load_cluster("h100-8")
    price = cluster.device.price_per_hour
    assert price is not None
    money = 1000 * 8 * eight.time_s * price / 3600
    assert rows[1][:2] == ["8 devices", format_step(eight.time_s)]
    assert f"money (USD, of 1000 steps): {money:.4g}" in rows[1][4]
    assert rows[1][2] == f"{16 * 256 / eight.time_s:,.0f} tokens/s"


def test_layers_that_are_alike_share_a_row(page: ReadPage) -> None:
    rows = page.table("Layers that are alike share a row")
    nodes = [row[0] for row in rows]
    assert any(node.startswith("blocks.*.") for node in nodes)
    assert len(rows) < 60


def test_every_source_of_the_cluster_is_named(page: ReadPage, comparison: Comparison) -> None:
    rows = page.table("h100-8: ")
    settings = comparison.ours.plan(0).settings
    assert [(row[0], row[2]) for row in rows] == [
        (origin.what, origin.source) for origin in provenance(settings)
    ]
    sources = "\n".join(row[2] for row in rows)
    for described in (settings.cluster["device"], *settings.cluster["levels"]):
        assert described["source"] in sources


def frontier_of(width: int = 64, batch: int = 30) -> Frontier:
    with torch.device("meta"):
        model, x = torch.nn.Linear(width, width), torch.zeros(batch, width)
    example = Example(model, (x,), loss_fn=torch.nn.functional.mse_loss, targets=(x,))
    return tensoropt_torch.find_frontier(example, cluster="h100-8", num_devices=8)


def test_what_is_left_whole_is_explained(tmp_path: Path) -> None:
    frontier_of(width=3, batch=3).report(tmp_path / "r.html")
    rows = ReadPage.of(tmp_path / "r.html").table("Cannot be split over all 8 devices")
    reasons = {row[0]: row[5] for row in rows}
    assert "of size 3 cannot be cut into" in reasons["mse_loss"]


def test_a_limit_that_nothing_fits_says_the_least(tmp_path: Path) -> None:
    frontier = frontier_of()
    frontier.report(tmp_path / "r.html", memory_limit=1.0)
    least = format_bytes(frontier.smallest.memory_bytes)
    text = (tmp_path / "r.html").read_text()
    assert re.search(rf"Nothing fits 1 B.*the least needs {least}\.", text)


class Frozen(torch.nn.Module):
    """With parameters that are not trained, one of a dtype that no optimizer knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.scale = torch.nn.Parameter(torch.ones(64), requires_grad=False)
        self.shift = torch.nn.Parameter(torch.ones(64, dtype=torch.int8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * self.scale + self.shift).sum()


@pytest.mark.parametrize("num_devices", [1, 8])
def test_parameters_that_are_not_trained_have_no_state(tmp_path: Path, num_devices: int) -> None:
    frontier = tensoropt_torch.find_frontier(
        Frozen(), (torch.zeros(16, 64),), cluster="h100-8", num_devices=num_devices
    )
    frontier.report(tmp_path / "r.html")
    page = ReadPage.of(tmp_path / "r.html")
    memory = {row[0]: row[1] for row in page.table("Memory that a device keeps")}
    assert list(memory) == ["parameters", "gradients", "optimizer state", "kept for backward"]
    if num_devices == 1:
        trained = 4 * (64 * 64 + 64)
        assert memory["parameters"] == format_bytes(trained + 4 * 64 + 64)
        assert memory["optimizer state"] == format_bytes(2 * trained)


def test_without_a_limit_the_fastest_is_picked(tmp_path: Path) -> None:
    frontier = frontier_of()
    frontier.report(tmp_path / "r.html", memory_limit=math.inf)
    text = (tmp_path / "r.html").read_text()
    most = format_bytes(frontier.fastest.memory_bytes)
    assert re.search(rf"<dd>keeps {most} per device[^<]*the fastest plan within the limit", text)


def test_a_limit_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TensorOptError, match=r"memory_limit = -1 is not allowed"):
        frontier_of().report(tmp_path / "r.html", memory_limit=-1)


def test_names_of_users_are_escaped(tmp_path: Path) -> None:
    frontier = frontier_of()
    settings = copy.deepcopy(frontier.settings.cluster)
    named = {**settings, "name": "<script>alert(1)</script>"}
    view = replace(frontier.view, settings=replace(frontier.settings, cluster=named))
    html = frontier_page(view, Additions())
    assert "<script>alert" not in html and "&lt;script&gt;alert" in html


def test_a_simulated_peak_is_shown_at_the_pick(tmp_path: Path) -> None:
    frontier = frontier_of()
    plan = frontier.fastest.plan
    x = torch.zeros(30, 64, device="meta")
    peak = tensoropt_torch.simulate_memory(
        Example(torch.nn.Linear(64, 64), (x,)), plan, optimizer="sgd"
    )
    frontier.report(tmp_path / "r.html", peak=peak)
    rows = ReadPage.of(tmp_path / "r.html").table("Memory per device at the simulated peak")
    assert {row[0]: row[1] for row in rows} == {
        name: format_bytes(count) for name, count in peak.categories.items()
    }


def test_a_frontier_without_points_is_refused() -> None:
    view = replace(frontier_of().view, points=())
    with pytest.raises(
        TensorOptError, match=r"nothing to report: 8 devices .* without memory_limi"
    ):
        frontier_page(view, Additions())
