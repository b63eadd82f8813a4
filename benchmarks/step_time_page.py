"""The tables of docs/step-times.md, made from the JSON files.

    python -m benchmarks.step_time_page

benchmarks/step_time.py and benchmarks/predictions.py do so when they end.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import processor
from benchmarks.page import fill_tables, rows_of
from benchmarks.ranks import format_ratio

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "step-times.md"
RESULTS = ROOT / "benchmarks" / "results"
PEERS = ("DDP", "FSDP2", "TP", "TP x DP", "TP x FSDP2")
LABELS = {
    "DDP": "DDP",
    "FSDP2": "FSDP2",
    "TP": "tensor parallelism by hand",
    "TP x DP": "TP x DP",
    "TP x FSDP2": "TP x FSDP2",
    "ours": "**ours, as `find_strategy` picks it**",
    "ours, predicted to be fastest": "ours, predicted to be fastest",
    "ours, data parallel": "ours, data parallel",
    "ours, data parallel without buckets": "the same without buckets",
    "ours, ZeRO-3": "ours, ZeRO-3",
    "ours, smallest": "ours, the smallest",
    "ours, steps on DTensors": "our pick with steps on `DTensor`s",
}
POINTS = ("data parallel", "ZeRO-3", "Megatron", "knee", "smallest", "predicted to be fastest")
Results = Mapping[str, Any]


def fill_page() -> None:
    """Of what there is."""
    steps, predictions = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in ("step_time", "predictions")
    )
    tables = {_name(where): steps_table(job) for where, job in steps.items()}
    tables["picks"] = picks_table(steps)
    tables["memory_of_peers"] = memory_table(steps)
    tables["predictions"] = predictions_table(predictions)
    fill_tables(PAGE, tables)


def steps_table(job: Results) -> str:
    """Steps as shares of those of the fastest peer, and peaks, by way and model."""
    models = job["models"]
    rows = [
        [title, *(_cell(found.get(label)) for found in models.values())]
        for label, title in LABELS.items()
        if any(label in found for found in models.values())
    ]
    errors = [error_of_corrected_costs(found) for found in models.values()]
    rows.append(["mean error of corrected costs, over our plans", *errors])
    rows.append(["measured on", *(processor(job["machines"][name]) for name in models)])
    return rows_of(["", *models], rows)


def error_of_corrected_costs(found: Results) -> str:
    """Mean without sign, over plans that run differently."""
    pairs = {(row["corrected_s"], row["step_s"]) for row in found.values() if "corrected_s" in row}
    if not pairs:
        return "-"
    errors = [abs(corrected / took - 1) for corrected, took in pairs]
    return f"{statistics.mean(errors):.0%} of {len(errors)}"


def picks_table(steps: Results) -> str:
    """Which point was picked, and what was predicted of it."""
    rows = []
    for where, job in steps.items():
        for model, found in job["models"].items():
            pick = found["ours"]
            names = ", ".join(point for point in POINTS if _runs_the_same(found, point))
            words = f"{names or 'another one'}. {pick.get('summary', '')}".strip()
            share = f"{pick['to_best_peer']['median_ratio']:.2f}"
            rows.append([f"{model}, {where}", words, *_predictions(pick), share])
    head = [
        "",
        "the pick is the point",
        "takes",
        "predicted",
        "by corrected costs",
        "fastest peer: 1",
    ]
    return rows_of(head, rows)


def memory_table(steps: Results) -> str:
    """Steps of what fits in the memory of each peer, as shares of the peer's."""
    rows = []
    for where, job in steps.items():
        for model, found in job["models"].items():
            shares = (_share_within(found, peer) for peer in PEERS)
            rows.append([f"{model}, {where}", *shares])
    return rows_of(["in the memory of", *PEERS], rows)


def predictions_table(predictions: Results) -> str:
    """Of the pick, and over all plans that were run."""
    head = [
        "",
        "pick takes",
        "predicted",
        "by corrected costs",
        "all plans",
        "pick, to the fastest",
        "measured on",
    ]
    rows = []
    for where, job in predictions.items():
        for model, found in job["models"].items():
            pick = found["ours"]
            over_all = error_of_corrected_costs(found)
            fastest = f"{pick['to_fastest']:.2f}"
            where_measured = processor(job["machines"][model])
            figures = [*_predictions(pick), over_all, fastest, where_measured]
            rows.append([f"{model}, {where}", *figures])
    return rows_of(head, rows)


def _name(where: str) -> str:
    return re.sub(r"\W+", "_", where)


def _runs_the_same(found: Results, point: str) -> bool:
    """As the pick: what runs the same is run once."""
    row = found.get(f"ours, {point}")
    return row is not None and bool(row["steps_s"] == found["ours"]["steps_s"])


def _predictions(pick: Results) -> list[str]:
    """What a step takes, and how far off it is predicted, before and after plans were run."""
    errors = (pick[key] / pick["step_s"] - 1 for key in ("predicted_s", "corrected_s"))
    return [f"{pick['step_s'] * 1e3:.0f} ms", *(f"{error:+.0%}" for error in errors)]


def _share_within(found: Results, peer: str) -> str:
    """Of the pick, if it fits, as it would be the pick within this limit; or of the point that
    costs say."""
    row = found.get(f"ours, memory of {peer}")
    if row is None:
        return "-"
    if found["ours"]["peak_mib"] <= found[peer]["peak_mib"]:
        row = found["ours"]
    pairs = zip(row["steps_s"], found[peer]["steps_s"], strict=True)
    return f"{statistics.median(ours / theirs for ours, theirs in pairs):.2f}"


def _cell(row: Results | None) -> str:
    if row is None:
        return "-"
    return f"{format_ratio(row['to_best_peer'])}; {row['peak_mib']:.0f} MiB"


if __name__ == "__main__":
    fill_page()
