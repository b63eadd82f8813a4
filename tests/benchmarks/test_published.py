"""Published rows: the file is consistent, and predictions are what their parts say."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from benchmarks.published import predict
from benchmarks.published.__main__ import RESULTS, error_of, summary
from benchmarks.published.calibrate import calibrated_on, calibrated_share, error_with
from benchmarks.published.rows import FOLDER, MODELS, Row, cluster_of, example_of, read_rows
from tensoropt_torch import load_cluster
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask

ROWS, SOURCES = read_rows()
ABLE = [row for row in ROWS if not row.missing]
# Billions of parameters that the names promise; MPT's and Llama's own.
SIZES = {"MPT 7B": 6.65, "MPT 30B": 29.9, "Llama 3.1 8B": 8.03, "Llama 2 70B shape": 68.98}


def test_rows_are_complete() -> None:
    assert [row.id for row in ROWS] == list(range(1, 100))
    assert {row.source for row in ROWS} == set(SOURCES)
    for row in ROWS:
        assert row.missing or row.model in MODELS, row.id
        assert (FOLDER / "clusters" / f"{row.machine}.toml").exists() or row.missing


def test_batches_are_those_that_were_published() -> None:
    for row in ABLE:
        whole = row.published["batch"].partition("(")[2].rstrip(")")
        if whole:
            assert row.batch == int(whole), row.id
        assert (
            row.published["speed"]
            .replace(",", "")
            .startswith(f"{row.record.get('tokens_per_s', (row.flops_per_s or 0) / 1e12):g}")
        )


@pytest.mark.parametrize(("model", "billions"), SIZES.items())
def test_models_have_their_size(model: str, billions: float) -> None:
    with torch.device("meta"):
        made = MODELS[model](2048)
    count = sum(parameter.numel() for parameter in made.parameters())
    assert count / 1e9 == pytest.approx(billions, rel=0.01)


def test_clusters_have_as_many_devices_as_the_rows() -> None:
    for row in ABLE:
        assert cluster_of(row).num_devices == row.devices
    grand_teton, preset = cluster_of(ROWS[0]), load_cluster("h100-8")
    assert grand_teton.device.memory_bytes > preset.device.memory_bytes
    assert (
        grand_teton.device.memory_bandwidth_bytes_per_s < preset.device.memory_bandwidth_bytes_per_s
    )


def test_operations_become_tokens() -> None:
    row = Row({"flops_per_s": 6e12 + 12.0 * 2 * 8 * 4 * 1e3, "sequence": 4})
    assert row.tokens_per_s(10**9, 2, 8) == pytest.approx(1000, rel=1e-3)


def small_row(recompute: str) -> tuple[Row, PlanningTask]:
    record = next(row.record for row in ROWS if row.id == 24)
    row = Row(record | {"recompute": recompute, "sequence": 128})
    model, tokens = example_of(replace(row, record=row.record | {"model": "MPT 760M"}))
    return row, PlanningTask(capture(model, tokens), cluster_of(row), optimizer=predict.OPTIMIZER)


def test_recomputation_and_sharding_take_less_memory() -> None:
    row, task = small_row("none")
    plain = predict.strategy_point(task, row, recompute=False)
    full = predict.strategy_point(task, row, recompute=True)
    kept = predict.strategy_point(task, Row(row.record | {"sharding": "ZeRO-2"}), recompute=False)
    assert plain and full and kept
    assert full[0] < plain[0] <= kept[0]
    assert full[1] > plain[1] >= kept[1]
    parameters = sum(p.numel() for p in example_of(row)[0].parameters())
    assert math.isfinite(full[0]) and parameters > 1e9


def test_steps_of_micro_batches_update_once() -> None:
    row, task = small_row("none")
    one = predict.strategy_point(task, row, recompute=False)
    twice = Row(row.record | {"accumulation": 2, "model": "MPT 760M"})
    model, tokens = example_of(twice)
    captured = micro_batched(capture(model, tokens), 2)
    two = predict.strategy_point(replace(task, captured=captured), twice, recompute=False)
    assert one and two
    sizes = [p.numel() for p in model.parameters()]
    device = task.cluster.device
    # In bfloat16; two states and the master weights in float32.
    moved = sum(sizes) / row.devices * (3 * 2 + 2 * 12)
    rate = device.memory_bandwidth_bytes_per_s * device.efficiency.memory
    updates_s = moved / rate + 2 * len(sizes) * device.launch_overhead_s
    # Less what it takes to add gradients up.
    assert 2 * one[1] - two[1] == pytest.approx(updates_s, rel=0.1)
    assert two[0] == pytest.approx(one[0], rel=0.05)


def test_attention_takes_longer_by_its_share() -> None:
    row, task = small_row("none")
    row = Row(row.record | {"sequence": 2048, "model": "MPT 760M"})
    model, tokens = example_of(row)
    task = replace(task, captured=capture(model, tokens))
    after = predict.strategy_point(task, row, recompute=False)
    fast = replace(task, cluster=predict.with_fast_attention(task.cluster))
    before = predict.strategy_point(fast, row, recompute=False)
    assert before and after
    efficiency = task.cluster.device.efficiency
    assert efficiency.attention is not None
    # Queries by keys and weights by values, half of them, 1 + 2.5 times, in 24 layers.
    flops = 24 * 3.5 * 4 * 0.5 * row.local_batch * 2048 * 2048 * 1536
    more = flops * (1 / efficiency.attention - 1 / efficiency.matmul)
    assert after[1] - before[1] == pytest.approx(more / 989e12, rel=1e-6)


def test_gathers_are_slower_than_links_of_a_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    row, task = small_row("none")
    (level,) = task.cluster.levels
    monkeypatch.setattr(predict, "NVLINK_LATENCY_S", level.latency_s)
    after = predict.strategy_point(task, row, recompute=False)
    assumed = replace(task, cluster=predict.with_assumed_links(task.cluster))
    before = predict.strategy_point(assumed, row, recompute=False)
    assert before and after
    assert after[0] == before[0]
    # Two gathers and a reduction of parameters in bfloat16.
    model, _ = example_of(Row(row.record | {"model": "MPT 760M"}))
    parameters = sum(p.numel() for p in model.parameters())
    per_byte = 1 / level.collectives["all_gather"].bandwidth_bytes_per_s
    moved = 3 * 2 * parameters * (1 - 1 / row.devices)
    more = moved * (per_byte - 1 / level.bandwidth_bytes_per_s)
    assert after[1] - before[1] == pytest.approx(more, rel=0.1)


def test_halves_are_dealt_out_by_number() -> None:
    judged = Row({"source": "x", "recompute": "none", "missing": []})
    rows = [replace(judged, record=judged.record | {"id": i}) for i in range(5)]
    rows.insert(1, Row({"source": "x", "recompute": "selective", "missing": []}))
    rows.insert(2, Row({"source": "y", "recompute": "full", "missing": []}))
    rows.insert(3, Row({"source": "x", "recompute": "full", "missing": ["float8"]}))
    assert [row.id for row in calibrated_on(rows)] == [1, 3]


def test_clusters_have_the_share_that_was_calibrated() -> None:
    record = json.loads(RESULTS.read_text())
    half = calibrated_on(ROWS)
    assert record["calibrated_on"] == [row.id for row in half]
    share = calibrated_share(half, record["rows"])
    for file in (FOLDER / "clusters").iterdir():
        assert load_cluster(file).device.efficiency.attention == share
    for row in half:
        found = record["rows"][str(row.id)]
        assert error_with(row, found, share) == pytest.approx(error_of(found, "tokens_per_s"))
        fast = error_with(row, found, cluster_of(row).device.efficiency.matmul)
        assert fast == pytest.approx(error_of(found, "tokens_per_s", "links"))


def test_errors_are_signed_shares() -> None:
    ends = [{"tokens_per_s": 110.0, "memory_gib": 5.0}]
    found = {"published": {"tokens_per_s": 100.0, "memory_gib": None}, "predicted": ends}
    assert error_of(found, "tokens_per_s") == pytest.approx(0.1)
    assert error_of(found, "memory_gib") is None
    assert error_of(found | {"predicted": ends * 2}, "tokens_per_s") is None
    assert error_of(found | {"predicted": [None]}, "tokens_per_s") is None


def test_committed_results_are_of_these_rows() -> None:
    record = json.loads(RESULTS.read_text())
    shown = [row for row in ABLE if str(row.id) in record["rows"]]
    assert len(shown) == len(record["rows"]) == len(ABLE)
    assert record["errors"] == summary(ROWS, record["rows"])
    assert record["missing"] == {str(row.id): row.missing for row in ROWS if row.missing}
    for row in shown:
        assert record["rows"][str(row.id)]["published"]["memory_gib"] == row.memory_gib
