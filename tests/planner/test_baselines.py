"""Baselines are what they are known for, and none beats the frontier."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.models import rnn, transformer, wide_resnet
from benchmarks.models.llama import Llama, LlamaConfig
from tensoropt_torch import TensorOptError, cli
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import BASELINES, Baseline, find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.points import BEST
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.planner.model_file import MODEL_FILE

DEVICES = 4
STATE_BYTES = 16  # float32 parameter, gradient and two moments
ROUNDING = 1e-9


def captured_on_meta(build: Callable[[], Any]) -> CapturedModel:
    """An operator without a rule is an error."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("error")
        return capture(*build())


def small_llama() -> Any:
    sizes = LlamaConfig(
        vocab_size=4096, n_layer=2, n_head=16, n_kv_head=8, n_embd=512, n_hidden=2048
    )
    tokens = torch.zeros(2, 16, 128, dtype=torch.long)
    return Llama(sizes), (tokens[0], tokens[1])


def small_resnet() -> Any:
    config = wide_resnet.WideResNetConfig(blocks=(1, 2), width=64, image_size=32, n_class=64)
    images = torch.zeros(64, 3, 32, 32), torch.zeros(64, dtype=torch.long)
    return wide_resnet.WideResNet(config), images


def small_lstm() -> Any:
    config = rnn.RNNConfig(vocab_size=4096, n_layer=2, n_hidden=512)
    tokens = torch.zeros(2, 64, 20, dtype=torch.long)
    return rnn.RNN(config), (tokens[0], tokens[1])


@dataclass
class Found:
    """The baselines of a model, by name."""

    task: PlanningTask
    by_name: dict[str, Baseline]

    def parameter_bytes(self) -> int:
        sources = self.task.captured.parameters
        return 4 * sum(source.placeholder.meta["val"].numel() for source in sources)


@pytest.fixture(scope="module", params=[small_llama, small_resnet, small_lstm])
def found(request: pytest.FixtureRequest) -> Found:
    task = PlanningTask(captured_on_meta(request.param), load_cluster("h100-8"))
    baselines = find_baselines(task, DEVICES)
    assert tuple(baseline.name for baseline in baselines) == BASELINES
    return Found(task, {baseline.name: baseline for baseline in baselines})


def chosen(plan: Plan) -> Iterator[tuple[dict[str, Any], str]]:
    """Every node with the label of its config."""
    assert plan.captured is not None
    rows = make_space(plan.captured, plan.settings).nodes()
    yield from zip(rows, plan.choices.labels, strict=True)


def storage(plan: Plan) -> Iterator[tuple[str, str, list[str]]]:
    """Name and storage layout of every parameter that can be sharded, with all
    layouts that it could have."""
    for row, label in chosen(plan):
        if row.target == "" and len(row.configs) > 1:
            yield row.name, label, row.configs


def test_no_baseline_beats_the_frontier(found: Found) -> None:
    frontier = find_frontier(found.task, DEVICES)
    bound = (1 + frontier.guarantee.epsilon) * (1 + ROUNDING)
    for name, baseline in found.by_name.items():
        assert baseline.points, name
        for memory, time_s in baseline.points:
            assert any(
                p.memory_bytes <= bound * memory and p.time_s <= bound * time_s for p in frontier
            ), (name, memory, time_s)


def test_points_are_those_of_their_plans(found: Found) -> None:
    for baseline in found.by_name.values():
        for index in {0, len(baseline.points) - 1}:
            plan = baseline.plan(index)
            assert (plan.memory_bytes, plan.time_s) == pytest.approx(baseline.points[index])


def test_data_parallel_replicates_parameters_and_splits_the_rest(found: Found) -> None:
    baseline = found.by_name["data parallel"]
    for index in range(len(baseline.points)):
        plan = baseline.plan(index)
        assert all(label == "R,R" for _, label, _ in storage(plan))
        space = make_space(found.task.captured, plan.settings)
        parameters = {name for name, _, _ in storage(plan)}
        for edge in space.edges_of(plan.choices.strategy(space)):
            if edge.source in parameters:
                assert "S" not in edge.layout_to, edge
        heavy = ("linear", "conv", "attention", "lstm", "embedding", "norm", "loss")
        labels = [label for row, label in chosen(plan) if any(part in row.target for part in heavy)]
        assert len(labels) > 3
        assert all("-" not in label and "+" not in label for label in labels), labels


def test_zero3_stores_a_share_of_every_parameter(found: Found) -> None:
    baseline = found.by_name["ZeRO-3"]
    labels = [label for _, label, _ in storage(baseline.plan(0))]
    assert len(labels) > 3
    assert all("R" not in label for label in labels)
    replicated = found.by_name["data parallel"].points[0][0]
    saved = (replicated - baseline.points[0][0]) / (STATE_BYTES / 4 * found.parameter_bytes())
    assert saved == pytest.approx(1 - 1 / DEVICES, rel=0.05)


def test_tofu_replicates_no_parameter_that_divides(found: Found) -> None:
    baseline = found.by_name["ToFu"]
    assert len(baseline.points) == 1
    for name, label, possible in storage(baseline.plan(0)):
        assert label.count("R") == min(other.count("R") for other in possible), name


def test_optcnn_is_the_fastest_of_those_that_store_parameters_as_used(found: Found) -> None:
    (point,) = found.by_name["OptCNN"].points
    for name in ("data parallel", "Megatron"):
        assert point[1] <= found.by_name[name].points[-1][1] * (1 + ROUNDING), name


def test_megatron_needs_less_memory_than_data_parallel(found: Found) -> None:
    megatron, data = found.by_name["Megatron"], found.by_name["data parallel"]
    assert megatron.points[0][0] < data.points[0][0]
    assert megatron.points[-1][1] <= data.points[-1][1] * (1 + ROUNDING)


def test_the_best_baseline_is_the_lower_envelope(found: Found) -> None:
    others = [baseline for name, baseline in found.by_name.items() if name != BEST]
    best = found.by_name[BEST]
    every = {point for baseline in others for point in baseline.points}
    assert set(best.points) <= every
    for memory, _ in every:
        times = [point[1] for other in others if (point := other.at(memory)) is not None]
        point = best.at(memory)
        assert point is not None and point[1] == min(times)


def test_at_is_the_fastest_point_that_fits() -> None:
    baseline = Baseline("ZeRO-3", ((1.0, 30.0), (2.0, 20.0), (4.0, 10.0)))
    assert baseline.at(0.5) is None
    assert baseline.at(2.0) == (2.0, 20.0)
    assert baseline.at(3.9) == (2.0, 20.0)
    assert baseline.at(1e9) == (4.0, 10.0)
    assert Baseline("ZeRO-3", ()).at(1e9) is None


def test_one_device_has_one_way() -> None:
    task = PlanningTask(captured_on_meta(small_lstm), load_cluster("h100-8"))
    expected = [(p.memory_bytes, p.time_s) for p in find_frontier(task, 1)]
    for baseline in find_baselines(task, 1, ["data parallel", "Mesh-TensorFlow", "Megatron"]):
        assert [pytest.approx(point) for point in baseline.points] == expected


def test_unknown_baselines_are_refused() -> None:
    task = PlanningTask(captured_on_meta(small_lstm), load_cluster("h100-8"))
    with pytest.raises(TensorOptError, match="'pipeline' is not known; choose from data parallel"):
        find_baselines(task, DEVICES, ["pipeline"])


def paper_models() -> dict[str, Callable[[], Any]]:
    return {
        "Transformer": lambda: (
            transformer.Transformer(transformer.TransformerConfig()),
            transformer.tokens(),
        ),
        "WideResNet": wide_resnet.wide_resnet,
        "RNN": lambda: (rnn.RNN(rnn.RNNConfig()), rnn.tokens()),
    }


@pytest.mark.parametrize("name", paper_models())
def test_models_need_few_names_for_mesh_tensorflow(name: str) -> None:
    captured = captured_on_meta(paper_models()[name])
    task = PlanningTask(captured, load_cluster("paper-2x8-v100"))
    sizes = make_space(captured, task.settings(16)).named_dims
    assert sizes[0] == 256
    assert 4 <= len(sizes) <= 10
    assert sizes[1:] == sorted(set(sizes[1:]))


def test_the_command_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "model.py"
    file.write_text(MODEL_FILE)
    where = ["--cluster", "h100-8", "--devices", "4"]
    assert cli.main(["compare", f"{file}:build", *where, "--memory-limit", "24KiB"]) == 0
    out = capsys.readouterr().out
    for name in (*BASELINES, "TensorOpt", "does not fit", "1.00"):
        assert name in out
