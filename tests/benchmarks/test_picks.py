"""The committed table of picks: all of them fit, and simulating takes no longer than planning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.picks.__main__ import PAGE, RESULT, table
from benchmarks.picks.models import MODELS, Model
from benchmarks.picks.study import rows_of
from tensoropt_torch import Example, load_cluster

ROWS: list[dict[str, Any]] = json.loads(RESULT.read_text())["rows"]


def test_models_have_rows_for_all_their_presets_with_and_without() -> None:
    measured = {row["model"] for row in ROWS}
    expected = {
        (name, preset, recompute)
        for name in measured
        for preset in MODELS[name].clusters
        for recompute in (False, True)
    }
    assert measured == set(MODELS)
    assert {(row["model"], row["preset"], row["recompute"]) for row in ROWS} == expected
    sizes = {round(load_cluster(row["preset"]).device.memory_bytes / 1e9) for row in ROWS}
    assert sizes == {24, 48, 80}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['preset']}")
def test_the_worst_rank_of_a_pick_fits(row: dict[str, Any]) -> None:
    if row["peak_bytes"] is None:  # then nothing is picked, and it is said
        assert row["least_peak_bytes"] > row["limit_bytes"]
        return
    worst = max(row["peak_bytes"], *row["other_ranks_bytes"].values())
    assert worst <= row["limit_bytes"] < row["device_bytes"]
    assert worst == row["peak_bytes"]  # no rank needs more than the one that is simulated


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['preset']}")
def test_simulating_takes_no_longer_than_planning(row: dict[str, Any]) -> None:
    assert row["simulating_s"] <= row["planning_s"]
    assert row["simulated_points"] <= 3


def test_the_page_has_the_table() -> None:
    assert table(ROWS) in PAGE.read_text()


def test_rows_are_of_what_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def small() -> Example:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
        loss_fn, targets = torch.nn.functional.mse_loss, (torch.empty(64, 8),)
        return Example(model, (torch.empty(64, 64),), loss_fn=loss_fn, targets=targets)

    monkeypatch.setitem(MODELS, "small", Model("small", small, ("rtx4090-2",)))  # type: ignore[arg-type]
    plain, cheaper = rows_of("small", [])
    assert plain["peak_bytes"] == max(plain["peak_bytes"], *plain["other_ranks_bytes"].values())
    assert (plain["simulated_points"], plain["devices"]) == (1, 2)
    assert cheaper["micro_batches"] == [2, 4, 8]
