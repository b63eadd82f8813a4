"""What a plan does in figures, beside what is computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tensoropt_torch
from benchmarks.models.rnn import RNN, RNNConfig
from tensoropt_torch import Plan
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.telling.details import details_of

FLOAT = 4
BATCH, IN, OUT = 32, 8, 16
WEIGHTS = IN * OUT + OUT


def of_baseline(name: str, optimizer: str = "sgd") -> Plan:
    """Of a linear layer, on 4 devices."""
    captured = capture(nn.Linear(IN, OUT), (torch.ones(BATCH, IN),), loss_fn=lambda y: y.sum())
    task = PlanningTask(captured, tensoropt_torch.load_cluster("cpu"), optimizer=optimizer)
    (baseline,) = find_baselines(task, 4, [name])
    return baseline.plan(0)


def test_data_parallelism_reduces_the_gradient_of_each_parameter() -> None:
    found = details_of(of_baseline("data parallel"))
    of_weights = [one for one in found.collectives if one.moved == "gradients of parameters"]
    (reduce,) = of_weights
    assert (reduce.kind, reduce.group_size, reduce.levels) == ("all_reduce", 4, ("process",))
    assert reduce.count == 2  # weight and bias
    assert reduce.num_bytes == WEIGHTS * FLOAT
    assert reduce.time_s > 0
    (storage,) = found.storage
    assert storage.layout == "R,R" and set(storage.names) == {"weight", "bias"}
    assert storage.num_bytes == storage.device_bytes == WEIGHTS * FLOAT


def test_zero_gathers_what_is_sharded() -> None:
    found = details_of(of_baseline("ZeRO-3"))
    (storage,) = found.storage
    assert storage.device_bytes == storage.num_bytes / 4 == WEIGHTS * FLOAT / 4
    kinds = {one.moved: one for one in found.collectives}
    gathered, scattered = kinds["parameters"], kinds["gradients of parameters"]
    assert (gathered.kind, scattered.kind) == ("all_gather", "reduce_scatter")
    # The larger side: the whole parameters.
    assert gathered.num_bytes == scattered.num_bytes == WEIGHTS * FLOAT


def test_memory_of_parameters_is_what_training_keeps() -> None:
    found = details_of(of_baseline("data parallel", "adamw")).memory
    assert found["parameters"] == found["gradients"] == WEIGHTS * FLOAT
    assert found["optimizer state"] == 2 * WEIGHTS * FLOAT
    # For the gradient of the weight: the batch, of which the rank holds the whole anyway.
    assert found["kept for backward"] == BATCH * IN * FLOAT


def test_parts_add_up_to_the_costs_of_each_point() -> None:
    with torch.device("meta"):
        model = RNN(RNNConfig(vocab_size=512, n_layer=2, n_hidden=256))
        tokens = torch.zeros(8, 4, dtype=torch.long)
    task = PlanningTask(capture(model, (tokens, tokens)), tensoropt_torch.load_cluster("h100-2x8"))
    frontier = find_frontier(task, 16)
    for point in frontier.thinned(4):
        found = details_of(point.plan)
        assert sum(found.memory.values()) == pytest.approx(point.memory_bytes)
        assert sum(found.time.values()) == pytest.approx(point.time_s)
        parts = [*found.memory.values(), *found.time.values()]
        assert min(parts) >= -1e-9 * max(parts), point
