"""The three options, and the frontier they pick from."""

from __future__ import annotations

import gc
import itertools
import json
import math
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import TensorOptError, cli
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner import candidates, picks
from tensoropt_torch.planner.baselines import compare
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.points import knee_index, thinned_indices
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.units import format_bytes
from tests.measure.kept.test_hardware_profile import KEY
from tests.planner.model_file import MODEL_FILE

GIB = 2**30


def meta_model() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """About 3.2 GB of parameter, gradient and optimizer state."""
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(12)]
        return nn.Sequential(*layers), (torch.zeros(64, 4096),)


@pytest.fixture(scope="module")
def frontier() -> Frontier:
    model, args = meta_model()
    return tensoropt_torch.find_frontier(model, args, cluster="h100-8", num_devices=8)


@pytest.fixture(scope="module")
def task() -> PlanningTask:
    model, args = meta_model()
    return PlanningTask(capture(model, args), tensoropt_torch.load_cluster("h100-8"))


def test_points_are_sorted_and_none_beats_another(frontier: Frontier) -> None:
    assert len(frontier) > 2
    for a, b in itertools.pairwise(frontier):
        assert a.memory_bytes < b.memory_bytes
        assert a.time_s > b.time_s


def test_picks_from_the_frontier(frontier: Frontier) -> None:
    assert frontier.smallest.index == 0
    assert frontier.fastest.index == len(frontier) - 1
    limit = (frontier[0].memory_bytes + frontier[1].memory_bytes) / 2
    assert frontier.at(limit).index == 0
    assert frontier.at(1e15).index == frontier.fastest.index
    assert 0 <= frontier.knee.index < len(frontier)
    with pytest.raises(TensorOptError, match="the least is"):
        frontier.at(1)


def test_points_of_one_frontier_are_one_object_each(frontier: Frontier) -> None:
    point = frontier[-1]
    assert point is frontier.fastest and point is frontier[len(frontier) - 1]
    assert list(frontier)[-1] is point and frontier[1:][-1] is point
    assert frontier.index(point) == point.index and point.frontier is frontier
    with pytest.raises(IndexError):
        frontier[len(frontier)]


def test_a_frontier_goes_as_soon_as_nobody_has_a_point_of_it() -> None:
    """Without the collector, which comes seldom: strategy spaces are large."""
    model, args = meta_model()
    found = tensoropt_torch.find_frontier(model, args, cluster="h100-8", num_devices=2)
    point, gone = found.fastest, weakref.ref(found)
    costs = [(point.memory_bytes, point.time_s) for point in found]
    gc.disable()
    try:
        del found
        assert gone() is point.frontier and point.plan.time_s == costs[-1][1]
        del point
        assert gone() is None
    finally:
        gc.enable()


def test_the_knee_is_the_corner() -> None:
    assert knee_index([(1, 100), (2, 10), (50, 9), (100, 8)]) == 1
    assert knee_index([(1, 1)]) == 0


def test_thinning_keeps_the_ends() -> None:
    assert thinned_indices(5, 10) == [0, 1, 2, 3, 4]
    assert thinned_indices(101, 3) == [0, 50, 100]
    assert thinned_indices(101, 1) == [100]
    with pytest.raises(TensorOptError, match="at least 1, not 0"):
        thinned_indices(101, 0)


def test_plans_survive_a_file(frontier: Frontier, tmp_path: Path) -> None:
    plan = frontier.knee.plan
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.hash == plan.hash
    assert loaded.captured is None
    with pytest.raises(TensorOptError, match="not a plan"):
        Plan.from_json("{}")


def test_mini_time_is_the_fastest_that_fits(task: PlanningTask, frontier: Frontier) -> None:
    limit = frontier.knee.memory_bytes
    assert picks.mini_time(task, 8, limit).time_s == frontier.at(limit).time_s


def test_what_a_limit_picks_is_within_the_bound_of_the_fastest_that_fits(
    task: PlanningTask,
) -> None:
    """Thinning may not replace the strategy that just fits by one that does not."""
    exact = candidates.find_frontier(replace(task, search=SearchSettings(epsilon=0)), 8)
    for epsilon in (0.01, 0.1, 0.5):
        rough = replace(task, search=SearchSettings(epsilon=epsilon))
        for point in exact.thinned(12):
            limit = point.memory_bytes
            allowed = (1 + epsilon) * (1 + 1e-12) * exact.at(limit).time_s
            assert picks.mini_time(rough, 8, limit).time_s <= allowed
            assert (picks.profile(rough, [8], limit)[0].time_s or math.inf) <= allowed
            assert compare(rough, 8, limit).ours.at(limit)[1] <= allowed


def test_mini_parallelism_uses_the_fewest_devices_that_fit(task: PlanningTask) -> None:
    needed = candidates.find_frontier(task, 4).smallest.memory_bytes
    point = picks.mini_parallelism(task, needed)
    assert point.plan.num_devices == 4
    for count in (1, 2, 3):
        assert candidates.find_frontier(task, count).smallest.memory_bytes > needed


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_counts_without_room_for_states_are_not_searched(
    task: PlanningTask, optimizer: str
) -> None:
    """No strategy of these fits; the first that does is among those that are searched."""
    task = replace(task, optimizer=optimizer)
    counts = candidates.plannable_counts(task)
    least = {n: candidates.find_frontier(task, n).smallest.memory_bytes for n in counts}
    for count in counts:
        assert task.state_bytes / count <= least[count]
    for limit in (1.0, *least.values(), *(task.state_bytes / n for n in counts)):
        fitting = candidates.fitting_counts(task, limit)
        assert all(least[n] > limit for n in {*counts} - {*fitting})
        assert fitting[-1] == counts[-1]
    assert candidates.fitting_counts(task, task.state_bytes / 4) == [n for n in counts if n >= 4]


def test_profiling_says_what_each_count_can_do(task: PlanningTask) -> None:
    limit = candidates.find_frontier(task, 4).smallest.memory_bytes
    rows = picks.profile(task, [1, 2, 4, 8], limit)
    assert [row.feasible for row in rows] == [False, False, True, True]
    assert all(row.least_memory_bytes > limit for row in rows[:2])
    assert rows[2].memory_bytes is not None and rows[2].memory_bytes <= limit


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.linear(x))
        return self.linear(x) + x


def test_one_device_has_one_strategy_where_values_have_several_consumers() -> None:
    with torch.device("meta"):
        captured = capture(Residual(), (torch.zeros(8, 64),))
    task = PlanningTask(captured, tensoropt_torch.load_cluster("h100-8"))
    assert len(candidates.find_frontier(task, 1)) == 1


def test_errors_say_what_would_do(task: PlanningTask) -> None:
    fits = candidates.find_frontier(task, 8).smallest.memory_bytes
    with pytest.raises(TensorOptError, match="at least 8 devices"):
        picks.mini_time(task, 2, fits)
    with pytest.raises(TensorOptError, match="no number of devices"):
        picks.mini_parallelism(task, 1000)
    with pytest.raises(TensorOptError, match="optimizer 'lion'"):
        PlanningTask(task.captured, task.cluster, optimizer="lion").settings(2)


@pytest.mark.parametrize("count", [2, 3, 4, 6, 8, 12, 16])
def test_any_product_of_small_primes_can_be_planned(count: int) -> None:
    with torch.device("meta"):
        model, args = nn.Linear(48, 96), (torch.zeros(48, 48),)
    found = tensoropt_torch.find_frontier(model, args, cluster="cpu", num_devices=count)
    assert found.fastest.plan.num_devices == count


def test_the_command_plans_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL_FILE)
    model = f"{file}:build"
    where = ["--cluster", "h100-8", "--devices", "4"]
    points = tmp_path / "points.json"
    assert cli.main(["frontier", model, *where, "--json", str(points)]) == 0
    assert json.loads(points.read_text())["num_devices"] == 4
    plan = tmp_path / "plan.json"
    assert cli.main(["plan", model, *where, "--details", "--output", str(plan)]) == 0
    assert Plan.load(plan).num_devices == 4
    assert cli.main(["profile", model, "--cluster", "h100-8", "--counts", "1,2"]) == 0
    energy = ["--counts", "1,2", "--objective", "energy"]
    assert cli.main(["tradeoffs", model, "--cluster", "h100-8", *energy]) == 0
    assert cli.main(["clusters"]) == 0
    out = capsys.readouterr().out
    for part in ("fastest", "mini_time", "feasible", "paper-2x8-v100"):
        assert part in out
    assert cli.main(["plan", "missing.py:f"]) == 2
    assert "missing.py" in capsys.readouterr().err


EXAMPLE_FILE = """
import torch
import tensoropt_torch
def build():
    with torch.device("meta"):
        x = torch.zeros(16, 64)
        loss = torch.nn.functional.mse_loss
        return tensoropt_torch.Example(torch.nn.Linear(64, 64), (x,), loss_fn=loss, targets=(x,))
def forget():
    return build().model
"""


def test_the_command_takes_an_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    file.write_text(EXAMPLE_FILE)
    assert cli.main(["memory", f"{file}:build", "--cluster", "h100-8", "--devices", "2"]) == 0
    assert "optimizer state" in capsys.readouterr().out
    assert cli.main(["frontier", f"{file}:forget", "--cluster", "h100-8"]) == 2
    assert "gives Linear; the function must return (module, args)" in capsys.readouterr().err


def test_profiling_with_a_hardware_profile_needs_no_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL_FILE)
    cluster = tensoropt_torch.load_cluster("h100-8")
    profile = tmp_path / "profile.json"
    HardwareProfile(KEY, cluster, ((2, 0),), complete=True).save(profile)
    arguments = ["profile", f"{file}:build", "--cluster", str(profile), "--counts", "1,2"]
    assert cli.main(arguments) == 0
    limit = format_bytes(0.9 * cluster.device.memory_bytes)
    assert f"at most {limit} per device" in capsys.readouterr().out


def test_coarse_configs_are_said_and_never_better(task: PlanningTask) -> None:
    whole = candidates.find_frontier(task, 8)
    coarse = candidates.find_frontier(replace(task, max_configs=6), 8)
    assert whole.guarantee.complete
    assert not coarse.guarantee.complete
    assert "coarse" in str(coarse.guarantee)
    slack = 1 + whole.guarantee.epsilon
    for point in coarse:
        assert any(
            p.memory_bytes <= slack * point.memory_bytes and p.time_s <= slack * point.time_s
            for p in whole
        )


def test_heuristics_are_said(task: PlanningTask) -> None:
    with torch.device("meta"):
        model = TwoHubs()
        captured = capture(model, (torch.zeros(64, 256),))
    hubs = replace(task, captured=captured)
    exact = candidates.find_frontier(hubs, 4)
    assert exact.guarantee.exact
    assert exact.guarantee.heuristics == ()
    search = SearchSettings(max_conditioning_work=0, heuristics=("least_time", 0.3))
    found = candidates.find_frontier(replace(hubs, search=search), 4)
    assert not found.guarantee.exact
    assert found.guarantee.heuristics == (0.0, 0.3)
    assert found.guarantee.epsilon == math.inf
    assert found.fastest.time_s >= exact.fastest.time_s
    assert found.fastest.plan.guarantee == found.guarantee
    wrong = replace(task, search=SearchSettings(heuristics=("most_time",)))
    with pytest.raises(TensorOptError, match="heuristic 'most_time'"):
        candidates.find_frontier(wrong, 2)


class TwoHubs(nn.Module):
    """Two values that all of several layers use: no order of eliminations does
    without tables over three nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.layers[0](x), self.layers[1](x)
        c = torch.relu(self.layers[2](a) * b)
        d = torch.relu(self.layers[3](b) * c + a)
        return self.layers[5](self.layers[4](d) * c + a * b + d)
