"""The time of a strategy is the computing of its nodes and its network time."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks.models.rnn import RNN, RNNConfig
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.planner.options import PlanningTask, SearchSettings
from tensoropt_torch.planner.space import make_planner

SEEDS = range(5)


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    with torch.device("meta"):
        model = RNN(RNNConfig(vocab_size=512, n_layer=2, n_hidden=256))
        tokens = torch.zeros(8, 4, dtype=torch.long)
    return capture(model, (tokens, tokens))


def with_network(task: PlanningTask, factor: float) -> PlanningTask:
    levels = tuple(
        dataclasses.replace(
            level,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s / factor,
            latency_s=level.latency_s * factor,
        )
        for level in task.cluster.levels
    )
    return dataclasses.replace(task, cluster=dataclasses.replace(task.cluster, levels=levels))


def splits(task: PlanningTask, config: list[int]) -> list[tuple[float, float]]:
    """(computing, network time) of every point with these configs."""
    planner = make_planner(task.captured, task.settings(4))
    rows = planner.describe_nodes()
    masks = [
        [i == chosen for i in range(len(row["configs"]))]
        for row, chosen in zip(rows, config, strict=True)
    ]
    result = SearchSettings(epsilon=0).run(planner, allowed=masks)
    strategies = [result.unroll(i) for i in range(len(result.points))]
    networks = [planner.network_time(strategy) for strategy in strategies]
    return [(s.time - n, n) for s, n in zip(strategies, networks, strict=True)]


def test_another_network_changes_the_network_time_only(captured: CapturedModel) -> None:
    task = PlanningTask(captured, load_cluster("h100-8"))
    planner = make_planner(captured, task.settings(4))
    for seed in SEEDS:
        config = planner.random_strategy(seed).config
        fast, slow = splits(task, config), splits(with_network(task, 3), config)
        compute_s = fast[0][0]
        for computing, _ in fast + slow:
            assert computing == pytest.approx(compute_s, rel=1e-9), seed
        # Local copies are part of it, and do not change.
        assert 1.5 * fast[-1][1] < slow[-1][1] < 3.001 * fast[-1][1], seed


def test_one_device_has_no_network(captured: CapturedModel) -> None:
    task = PlanningTask(captured, load_cluster("h100-8"))
    planner = make_planner(captured, task.settings(1))
    strategy = planner.random_strategy(1)
    assert strategy.time > 0
    assert planner.network_time(strategy) == 0


def test_a_strategy_of_another_space_is_refused(captured: CapturedModel) -> None:
    task = PlanningTask(captured, load_cluster("h100-8"))
    strategy = make_planner(captured, task.settings(4)).random_strategy(1)
    with pytest.raises(ValueError, match="has 1 configs"):
        make_planner(captured, task.settings(1)).network_time(strategy)
