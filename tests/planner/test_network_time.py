"""The time of a strategy is the computing of its nodes and its network time."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks.models.rnn import RNN, RNNConfig
from tensoropt_torch.config import load_cluster
from tensoropt_torch.config.cluster import Exposed
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.planner.why import faster_network
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.space.settings import Settings

SEEDS = range(5)


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    with torch.device("meta"):
        model = RNN(RNNConfig(vocab_size=512, n_layer=2, n_hidden=256))
        tokens = torch.zeros(8, 4, dtype=torch.long)
    return capture(model, (tokens, tokens))


def splits(
    captured: CapturedModel, settings: Settings, config: list[int]
) -> list[tuple[float, float]]:
    """(computing, network time) of every point with these configs."""
    space = make_space(captured, settings)
    rows = space.nodes()
    masks = [
        [i == chosen for i in range(len(row.configs))]
        for row, chosen in zip(rows, config, strict=True)
    ]
    result = SearchSettings(epsilon=0).run(space, allowed=masks)
    strategies = [result.unroll(i) for i in range(len(result.points))]
    networks = [space.network_time(strategy) for strategy in strategies]
    return [(s.time - n, n) for s, n in zip(strategies, networks, strict=True)]


def test_another_network_changes_the_network_time_only(captured: CapturedModel) -> None:
    settings = PlanningTask(captured, load_cluster("h100-8")).settings(4)
    space = make_space(captured, settings)
    for seed in SEEDS:
        config = space.random_strategy(seed).config
        fast = splits(captured, settings, config)
        slow = splits(captured, faster_network(settings, 1 / 3), config)
        compute_s = fast[0][0]
        for computing, _ in fast + slow:
            assert computing == pytest.approx(compute_s, rel=1e-9), seed
        # Local copies are part of it, and do not change.
        assert 1.5 * fast[-1][1] < slow[-1][1] < 3.001 * fast[-1][1], seed


def test_one_device_has_no_network(captured: CapturedModel) -> None:
    task = PlanningTask(captured, load_cluster("h100-8"))
    space = make_space(captured, task.settings(1))
    strategy = space.random_strategy(1)
    assert strategy.time > 0
    assert space.network_time(strategy) == 0


def test_a_strategy_of_another_space_is_refused(captured: CapturedModel) -> None:
    task = PlanningTask(captured, load_cluster("h100-8"))
    strategy = make_space(captured, task.settings(4)).random_strategy(1)
    with pytest.raises(ValueError, match="does not exist, there are 1"):
        make_space(captured, task.settings(1)).network_time(strategy)


def with_exposed(task: PlanningTask, parameters: float, gradients: float) -> PlanningTask:
    return task.with_runtime(exposed=Exposed(parameters, gradients))


def exposed_network(task: PlanningTask, seed: int, parameters: float, gradients: float) -> float:
    """The network time of a strategy with these shares exposed; computing is the same."""
    exposed = with_exposed(task, parameters, gradients)
    space = make_space(task.captured, exposed.settings(4))
    strategy = space.random_strategy(seed)
    same = make_space(task.captured, task.settings(4))
    assert space.compute_time(strategy) == pytest.approx(same.compute_time(strategy), rel=1e-12)
    return float(space.network_time(strategy))


def test_what_is_not_exposed_of_parameters_takes_no_time(captured: CapturedModel) -> None:
    task = PlanningTask(captured, load_cluster("h100-8"), overlap=True)
    hidden = 0
    for seed in SEEDS:
        whole_s = exposed_network(task, seed, 1, 1)
        parameters_s = whole_s - exposed_network(task, seed, 0, 1)
        gradients_s = whole_s - exposed_network(task, seed, 1, 0)
        some_s = exposed_network(task, seed, 0.25, 0.5)
        assert some_s == pytest.approx(whole_s - 0.75 * parameters_s - 0.5 * gradients_s), seed
        assert min(parameters_s, gradients_s) >= 0 and some_s > 0
        hidden += parameters_s > 0 and gradients_s > 0
        # Without overlap all of it is waited for.
        blocking = dataclasses.replace(task, overlap=False)
        assert exposed_network(blocking, seed, 0, 0) == pytest.approx(whole_s, rel=1e-9)
    assert hidden > 0


def test_overlap_is_used_where_it_is_faster(captured: CapturedModel) -> None:
    on_gpus = PlanningTask(captured, load_cluster("h100-8"))
    on_cpus = PlanningTask(captured, load_cluster("cpu"))
    assert on_gpus.settings(2).overlap
    assert not on_cpus.settings(2).overlap
    assert with_exposed(on_cpus, 1.0, 0.5).settings(2).overlap
    assert not with_exposed(on_gpus, 1.0, 1.0).settings(2).overlap
    assert not dataclasses.replace(on_gpus, overlap=False).settings(2).overlap
