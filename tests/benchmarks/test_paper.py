"""The studies of the paper at toy sizes: JSON, claims, figures and tables."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.growth import Sizes, cover_factor
from benchmarks.isolated import limit_process, run_isolated
from benchmarks.models.catalogue import Example
from benchmarks.models.llama import LlamaConfig
from benchmarks.models.rnn import RNN, RNNConfig
from benchmarks.paper import __main__ as paper
from benchmarks.paper.claims import CLAIMS, turning_points
from benchmarks.paper.figures import FIGURES
from benchmarks.paper.setups import Setup
from benchmarks.paper.studies import STUDIES, Scope
from benchmarks.paper.tables import TABLES

GIB = 2**30


def tiny_rnn() -> Example:
    tokens = torch.zeros(16, 4, dtype=torch.long)
    return RNN(RNNConfig(vocab_size=512, n_layer=1, n_hidden=128)), (tokens, tokens)


TINY = Scope(
    setups={
        "transformer": Setup("Tiny RNN", tiny_rnn, "sgd"),
    },
    counts=(1, 8),
    epsilon=0.1,
    growth=Sizes(
        layers=(1,),
        devices=(2,),
        max_configs=(10,),
        llama=LlamaConfig(
            vocab_size=256, n_layer=1, n_head=4, n_kv_head=4, n_embd=64, n_hidden=128
        ),
        batch=16,
        length=16,
        kept_layers=1,
        kept_devices=2,
        devices_for_configs=4,
        loss_models={"RNN": tiny_rnn},
        loss_configs=(2,),
        loss_devices=(2,),
        order_devices=(4,),
    ),
)


PLANNED = ("frontiers", "bandwidth", "parallelism")
TIMED = tuple(name for name in STUDIES if name not in PLANNED)


def report(studies: Sequence[str], folder: Path) -> dict[str, Any]:
    """The records of the studies; every figure and table of theirs is there."""
    tables = [name for name, (study, _) in TABLES.items() if study in (*studies, "claims")]
    page = folder / "paper.md"
    page.write_text("".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in tables))
    paper.run_studies(studies, TINY, folder)
    paper.report(folder, page)
    assert all("| --- |" in table for table in page.read_text().split("<!-- end -->")[:-1])
    for name, (study, _) in FIGURES.items():
        if study in studies:
            assert "</svg>" in (folder / f"{name}.svg").read_text()
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in studies}


def test_planned_studies_make_json_figures_and_tables(tmp_path: Path) -> None:
    results = report(PLANNED, tmp_path)
    assert all(result["machine"]["cores"] > 0 for result in results.values())
    for frontier in results["frontiers"]["models"]["transformer"]["devices"].values():
        costs = dict(frontier["points"])
        for row in frontier["split"]:
            time_s = row["network_s"] + row["compute_s"]
            assert time_s == pytest.approx(costs[round(row["memory_bytes"])], rel=1e-6)
    claims = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert [claim["claim"] for claim in claims] == [claim.name for claim in CLAIMS]


@pytest.mark.slow
def test_timed_studies_make_json_figures_and_tables(tmp_path: Path) -> None:
    results = report(TIMED, tmp_path)
    runs = results["search_time"]["models"]["transformer"]["runs"]
    assert {"FT-LDP", "FT-LDP, one thread", "FT-Elimination"} <= runs.keys()
    assert all(run["num_points"] > 0 for run in runs.values())
    entries = results["losses"]["ordered"] + results["losses"]["coarse"][0]["by_max_configs"]
    assert len(entries) == 2
    assert all(entry["factor"] >= 1 for entry in entries)


def test_drawing_again_changes_nothing(tmp_path: Path) -> None:
    report(["bandwidth"], tmp_path)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    paper.report(tmp_path, tmp_path / "paper.md")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == first


def test_turning_points_are_those_that_stand_out() -> None:
    def frontier(depths: list[float]) -> list[tuple[float, float]]:
        last = len(depths) - 1
        return [
            (math.exp(i / last), math.exp(1 - i / last - depth)) for i, depth in enumerate(depths)
        ]

    assert turning_points(frontier([0, 0.3, 0.5, 0.4, 0])) == [2]
    assert turning_points(frontier([0, 0.3, 0.25, 0.4, 0])) == [3]
    assert turning_points(frontier([0, 0.5, 0.1, 0.4, 0])) == [1, 3]
    assert turning_points(frontier([0, -0.2, -0.3, -0.1, 0])) == []
    assert turning_points([(1.0, 1.0)]) == []


def test_the_cover_factor_is_the_least_that_covers() -> None:
    ours = [(1.0, 4.0), (2.0, 2.0)]
    assert cover_factor(ours, ours) == 1
    assert cover_factor(ours, [(1.0, 3.0)]) == pytest.approx(4 / 3)
    assert cover_factor(ours, [(1.5, 2.0), (4.0, 1.6)]) == pytest.approx(4 / 3)


def sleep_for(seconds: float, limit_s: float) -> str:
    limit_process(limit_s, 64 * GIB)
    time.sleep(seconds)
    return "slept"


def fail() -> None:
    raise ValueError("as it should")


def test_isolated_functions_return_or_run_out_of_time_or_say_why() -> None:
    assert run_isolated(sleep_for, 0.0, 30.0) == "slept"
    assert run_isolated(sleep_for, 600.0, 0.1) is None
    with pytest.raises(RuntimeError, match="as it should"):
        run_isolated(fail)
