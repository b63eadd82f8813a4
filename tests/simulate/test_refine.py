"""Picking by simulated peaks instead of sums."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

import tensoropt_torch
from benchmarks.memory.models import make
from tensoropt_torch import TensorOptError, cli, load_cluster
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.frontier import Frontier, FrontierPoint
from tensoropt_torch.simulate import SimulatedPoint, fastest_within, refine, simulate_frontier, step
from tensoropt_torch.units import format_bytes
from tests.distributed.harness import run_ranks

HERE = "tests.simulate.test_refine"


@pytest.fixture(scope="module")
def frontier() -> Frontier:
    """Of a perceptron on 4 devices."""
    return tensoropt_torch.find_frontier(*make("mlp"), cluster="cpu", num_devices=4)


@pytest.fixture(scope="module")
def peaks(frontier: Frontier) -> list[int]:
    """Of all points."""
    model, _ = make("mlp")
    return [tensoropt_torch.simulate_memory(model, p.plan).peak_bytes for p in frontier]


@pytest.fixture(scope="module")
def long() -> Frontier:
    """Many points."""
    model, args = make("gpt")
    finely = tensoropt_torch.SearchSettings(epsilon=1e-4)
    found = tensoropt_torch.find_frontier(model, args, cluster="h100-2x8", search=finely)
    assert len(found) > 100
    return found


Simulated = Callable[[FrontierPoint, object], SimulatedPoint]


def simulating(peaks: list[int], seen: list[int]) -> Simulated:
    """In place of the simulation: peaks that are given; notes the points."""

    def simulated(point: FrontierPoint, _: object) -> SimulatedPoint:
        seen.append(point.index)
        return SimulatedPoint(point, peaks[point.index])

    return simulated


def test_a_simulated_frontier_holds_what_no_point_beats(
    frontier: Frontier, peaks: list[int]
) -> None:
    expected = {
        (peak, point.time_s)
        for peak, point in zip(peaks, frontier, strict=True)
        if not any(
            (other <= peak and at.time_s < point.time_s)
            or (other < peak and at.time_s <= point.time_s)
            for other, at in zip(peaks, frontier, strict=True)
        )
    }
    found = simulate_frontier(frontier, max_points=len(frontier))
    assert {(point.peak_bytes, point.time_s) for point in found} == expected
    assert [point.peak_bytes for point in found] == sorted(peak for peak, _ in expected)
    assert all(point.plan.peak_bytes == point.peak_bytes for point in found)
    thinned = {p.memory_bytes for p in simulate_frontier(frontier, max_points=2)}
    assert thinned <= {frontier[0].memory_bytes, frontier[-1].memory_bytes}


def test_the_fastest_whose_peak_fits_is_found() -> None:
    model, args = make("gpt")
    frontier = tensoropt_torch.find_frontier(model, args, cluster="h100-8", num_devices=4)
    points = range(3 * len(frontier) // 4, len(frontier))
    peaks = [tensoropt_torch.simulate_memory(model, frontier[i].plan).peak_bytes for i in points]
    limit = sorted(peaks)[len(peaks) // 2]
    assert frontier.fastest.memory_bytes < limit < max(peaks)
    found = fastest_within(frontier, limit)
    fitting = max(i for i, peak in enumerate(peaks) if peak <= limit)
    assert found.point.index == points[fitting]
    assert found.peak_bytes == peaks[fitting]


@pytest.mark.parametrize("seed", range(30))
def test_of_rising_peaks_few_are_simulated(
    long: Frontier, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    generator = random.Random(seed)
    wrong = generator.uniform(0.2, 5)
    made = sorted(int(p.memory_bytes * generator.uniform(0.5, 1) * wrong) for p in long)
    seen: list[int] = []
    monkeypatch.setattr(refine, "_simulated", simulating(made, seen))
    limit = generator.choice(made)
    found = fastest_within(long, limit)
    assert found.point.index == max(i for i, peak in enumerate(made) if peak <= limit), seed
    assert len(seen) == len(set(seen)) <= 3 * math.log2(len(made)) + 3, seed


@pytest.mark.parametrize("seed", range(30))
def test_of_peaks_in_any_order_one_that_fits_is_found(
    long: Frontier, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    generator = random.Random(seed)
    made = [int(p.memory_bytes * generator.uniform(0.3, 3)) for p in long]
    monkeypatch.setattr(refine, "_simulated", simulating(made, []))
    limit = made[0] * generator.uniform(1, 3)
    found = fastest_within(long, limit)
    after = made[found.point.index + 1 :]
    assert found.peak_bytes <= limit, seed
    assert not after or max(after[0], after[-1]) > limit, seed


def test_points_in_between_are_tried_before_it_is_said_that_none_fits(
    long: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With peaks that fall in the middle."""
    middle, fitting = len(long) // 2, len(long) // 10
    made = [int(1e9 + 1e6 * abs(index - middle)) for index in range(len(long))]
    monkeypatch.setattr(refine, "_simulated", simulating(made, []))
    found = fastest_within(long, made[middle] + fitting * 1e6)
    assert found.point.index == middle + fitting


def test_the_least_peak_is_named_where_none_fits(frontier: Frontier, peaks: list[int]) -> None:
    least = format_bytes(min(peaks))
    with pytest.raises(TensorOptError, match=f"4 devices has a simulated.*the least is {least}"):
        fastest_within(frontier, min(peaks) - 1)


def find(**arguments: object) -> Plan:
    model, args = make("mlp")
    chosen = {"cluster": "cpu", "num_devices": 4, "memory": "simulated"} | arguments
    return tensoropt_torch.find_strategy(model, args, **chosen)


def test_a_strategy_is_picked_by_its_peak(frontier: Frontier, peaks: list[int]) -> None:
    """The sum of the fastest strategy is below the limit here, its peak is not."""
    fastest, limit = frontier[-1], peaks[-1] - 1
    assert fastest.memory_bytes < limit
    by_sum = find(memory_limit=limit, memory="sums")
    assert by_sum.time_s == fastest.time_s
    assert by_sum.peak_bytes is None
    plan = find(memory_limit=limit)
    assert plan.peak_bytes == [peak for peak in peaks if peak <= limit][-1]
    assert plan.time_s > fastest.time_s
    assert Plan.from_json(plan.to_json()) == plan
    assert tensoropt_torch.simulate_memory(make("mlp")[0], plan).peak_bytes == plan.peak_bytes


def test_all_of_the_memory_is_the_default_limit(peaks: list[int]) -> None:
    cluster = load_cluster("cpu")
    exact = replace(cluster, device=replace(cluster.device, memory_bytes=peaks[-1]))
    assert find(cluster=exact).peak_bytes == peaks[-1]
    gpu = replace(exact, device=replace(exact.device, type="cuda"))
    with pytest.raises(TensorOptError, match=format_bytes(0.9 * peaks[-1])):
        find(cluster=gpu)


def test_hopeless_counts_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = make("mlp")
    alone = tensoropt_torch.find_frontier(model, args, cluster="cpu", num_devices=1)
    seen: list[int] = []

    def simulated(point: FrontierPoint, _: object) -> SimulatedPoint:
        seen.append(point.plan.num_devices)
        return SimulatedPoint(point, int(point.memory_bytes))

    monkeypatch.setattr(refine, "_simulated", simulated)
    limit = 0.49 * alone.smallest.memory_bytes
    plan = find(option="mini_parallelism", memory_limit=limit, num_devices=None)
    assert plan.num_devices > 2
    assert 1 not in seen
    assert {2, plan.num_devices} <= set(seen)


def test_the_fewest_devices_whose_peaks_fit_are_found() -> None:
    model, args = make("mlp")
    alone = tensoropt_torch.find_frontier(model, args, cluster="cpu", num_devices=1)
    (point,) = alone
    limit = tensoropt_torch.simulate_memory(model, point.plan).peak_bytes - 1
    assert point.memory_bytes < limit
    arguments = {"option": "mini_parallelism", "memory_limit": limit, "num_devices": None}
    assert find(**arguments, memory="sums").num_devices == 1
    assert find(**arguments).num_devices == 2
    cluster = load_cluster("cpu")
    small = replace(cluster, levels=(replace(cluster.levels[0], count=2),))
    with pytest.raises(
        TensorOptError,
        match=r"on up to 2 devices.*simulated peak.* on 2 is .*; raise memory_limit to that",
    ):
        find(**arguments | {"memory_limit": 1000, "cluster": small})


MODEL_FILE = """
import torch
class Model(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).square().mean()
def build():
    with torch.device("meta"):
        return Model(64, 64), (torch.zeros(16, 64),)
"""


def test_the_command_picks_by_peaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, output = tmp_path / "model.py", tmp_path / "plan.json"
    model.write_text(MODEL_FILE)
    where = (f"{model}:build", "--devices", "2", "--output", str(output))
    assert cli.main(["plan", *where]) == 0
    plan = Plan.load(output)
    assert plan.peak_bytes is not None
    sums, peak = format_bytes(plan.memory_bytes), format_bytes(plan.peak_bytes)
    said = f"{sums} per device by sums, simulated peak of {peak}"
    assert said in " ".join(capsys.readouterr().out.split())
    assert cli.main(["plan", *where, "--memory", "sums"]) == 0
    assert Plan.load(output).peak_bytes is None
    assert "per device by sums, not simulated" in " ".join(capsys.readouterr().out.split())


def test_commands_that_take_a_limit_compare_it_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With simulated peaks, with sums if they are asked for."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "model.py").write_text(MODEL_FILE)
    where = (f"{tmp_path / 'model.py'}:build", "--cluster", "h100-8")
    for command in (("profile", "--counts", "1,2"), ("compare",), ("tradeoffs", "--counts", "1,2")):
        printed = {}
        for memory in ("simulated", "sums"):
            arguments = (command[0], *where, *command[1:], "--memory", memory)
            with patch.object(refine, "peak_of", wraps=refine.peak_of) as simulated:
                assert cli.main([*arguments]) == 0
            printed[memory] = simulated.called
            assert capsys.readouterr().out
        assert printed == {"simulated": True, "sums": False}, command


def test_a_plan_that_is_picked_already_takes_no_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL_FILE)
    model = f"{tmp_path / 'model.py'}:build"
    for given in (("--memory", "sums"), ("--memory-limit", "1GiB")):
        assert cli.main(["memory", model, "--plan", "plan.json", *given]) != 0
        assert f"{given[0]} is not for a saved plan" in " ".join(capsys.readouterr().err.split())


def test_an_unknown_predictor_is_named() -> None:
    with pytest.raises(TensorOptError, match="memory='peaks' is not known; choose one of sums"):
        find(memory="peaks")


def plan_and_step(limit: int) -> tuple[str, int | None]:
    """What this rank plans, which then runs."""
    plan = find(num_devices=2, memory_limit=limit, measure=False)
    model, args = make("mlp")
    tensoropt_torch.parallelize(model, plan)(*args).backward()
    return plan.hash, plan.peak_bytes


def test_all_ranks_get_the_plan_that_rank_0_simulated() -> None:
    model, args = make("mlp")
    pair = tensoropt_torch.find_frontier(model, args, cluster="cpu", num_devices=2)
    limit = tensoropt_torch.simulate_memory(model, pair.fastest.plan).peak_bytes
    first, second = run_ranks(2, f"{HERE}:plan_and_step", limit)
    assert first == second
    expected = find(num_devices=2, memory_limit=limit)
    assert first == (expected.hash, expected.peak_bytes) == (expected.hash, limit)


def test_profile_and_compare_pick_by_peaks(frontier: Frontier, peaks: list[int]) -> None:
    model, args = make("mlp")
    limit = peaks[-1] - 1
    given = {"cluster": "cpu", "memory_limit": limit}
    (row,) = tensoropt_torch.profile(model, args, device_counts=[4], **given)
    assert row.peak_bytes is not None and row.peak_bytes <= limit
    assert row.time_s is not None and row.time_s > frontier[-1].time_s
    (of_sums,) = tensoropt_torch.profile(model, args, device_counts=[4], memory="sums", **given)
    assert (of_sums.time_s, of_sums.peak_bytes) == (frontier[-1].time_s, None)
    comparison = tensoropt_torch.compare(model, args, num_devices=4, **given)
    assert comparison.picks is not None
    plan = comparison.plan()
    assert plan is not None
    assert (plan.time_s, plan.peak_bytes) == (row.time_s, row.peak_bytes)
    for baseline in comparison.baselines:
        picked = comparison.picks[baseline.name]
        assert picked is None or picked.peak_bytes <= limit
        if picked is not None and baseline.name != "best baseline":
            found = tensoropt_torch.simulate_memory(model, baseline.plan(picked.index))
            assert found.peak_bytes == picked.peak_bytes


def test_what_cannot_be_simulated_is_picked_by_sums(caplog: pytest.LogCaptureFixture) -> None:
    model, args = torch.nn.Linear(64, 64), (torch.zeros(16, 64),)
    given = {"cluster": "cpu", "num_devices": 2}
    plan = tensoropt_torch.find_strategy(model, args, **given)
    assert plan.peak_bytes is None
    assert "compared with sums: the captured model returns no scalar" in caplog.text
    with pytest.raises(TensorOptError, match="returns no scalar"):
        tensoropt_torch.find_strategy(model, args, memory="simulated", **given)


def test_simulation_is_the_default() -> None:
    model, args = make("mlp")
    plan = tensoropt_torch.find_strategy(model, args, cluster="cpu", num_devices=4)
    assert plan.peak_bytes == tensoropt_torch.simulate_memory(model, plan).peak_bytes


def test_a_pick_may_be_a_little_slower_so_that_fewer_are_simulated(
    long: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [int(1.7 * point.memory_bytes) for point in long]
    seen: list[int] = []
    monkeypatch.setattr(refine, "_simulated", simulating(made, seen))
    for index in range(0, len(long), 10):
        seen.clear()
        found = fastest_within(long, made[index], close=0.01)
        assert found.peak_bytes <= made[index]
        assert found.time_s <= 1.01 * long[index].time_s
        assert len(seen) <= 6


@pytest.mark.parametrize("split_spatial", [False, True])
def test_where_neighbours_exchange_borders_the_rank_that_needs_most_counts(
    frontier: Frontier, monkeypatch: pytest.MonkeyPatch, split_spatial: bool
) -> None:
    peaks = [5, 9, 7, 6]

    def simulated(_: Plan, __: object, settings: refine.StepSettings) -> SimpleNamespace:
        return SimpleNamespace(peak_bytes=peaks[settings.rank])

    monkeypatch.setattr(step, "simulate_step", simulated)
    plan = frontier.fastest.plan
    assert plan.captured is not None
    plan = replace(plan, settings=replace(plan.settings, split_spatial=split_spatial))
    found = refine.peak_of(plan, frontier.fastest.plan.captured, refine.DEFAULT_STEP)
    assert found == (9 if split_spatial else 5)
