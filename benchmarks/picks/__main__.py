"""Picks of twelve models on presets with 24, 48 and 80 GB: do they fit by simulated peaks?

    python -m benchmarks.picks --models gpt2 bert      # by default all
    python -m benchmarks.picks --page                  # the table of docs/costs.md

Each model is captured once, in a process of its own, and picked for three presets by
``mini_time`` with default options, without and with recomputation and up to 8 micro-batches
(recomputation alone where a batch cannot be run in micro-batches; up to 32 of the largest
batch). For each row: seconds of planning by sums (capture, micro-batches, search) and those that
simulating adds; sum and simulated peak of the pick, and those of the ranks beside the one that was
simulated. Writes
benchmarks/results/picks.json, where rows of other models stay, so that it can go on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.isolated import run_isolated
from benchmarks.page import fill_tables
from benchmarks.page import rows_of as page_table
from benchmarks.picks.models import MODELS
from benchmarks.picks.study import rows_of

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "picks.json"
PAGE = ROOT / "docs" / "costs.md"
GIB = 2**30


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the rows of the file that are not among these."""
    kept = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    found = {(r["model"], r["preset"], r["recompute"]): r for r in [*kept, *rows]}
    names = list(MODELS)
    order = sorted(found, key=lambda key: (names.index(key[0]), found[key]["device_bytes"], key[2]))
    return [found[key] for key in order]


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    head = (
        "model",
        "preset",
        "recomputation, micro-batches",
        "limit",
        "sum",
        "simulated peak",
        "peak of the pick by sums",
        "planning",
        "simulating",
    )
    return page_table(head, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    ways = "both" if row["micro_batches"] else "recomputation"
    return (
        MODELS[row["model"]].title,
        f"`{row['preset']}`",
        ways if row["recompute"] else "neither",
        _gib(row["limit_bytes"]),
        _gib(row["sum_bytes"]),
        _fits(row),
        _gib(row["peak_of_pick_of_sums_bytes"]),
        f"{row['planning_s']:.1f} s",
        f"{row['simulating_s']:.1f} s ({row['simulated_points']})",
    )


def _gib(num_bytes: float | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / GIB:.2f}"


def _fits(row: dict[str, Any]) -> str:
    if row["peak_bytes"] is not None:
        return _gib(max(row["peak_bytes"], *row["other_ranks_bytes"].values()))
    return f"nothing fits: {_gib(row['least_peak_bytes'])}"


def main() -> None:
    """Measure the models that are named, and write the JSON; or show it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--presets", nargs="+", default=[], help="by default those of the model")
    parser.add_argument("--page", action="store_true", help="only write the table of docs/costs.md")
    options = parser.parse_args()
    if options.page:
        fill_tables(PAGE, {"picks": table(json.loads(RESULT.read_text())["rows"])})
        return
    for name in options.models:
        try:
            rows = run_isolated(rows_of, name, options.presets)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        RESULT.write_text(json.dumps({"rows": merged(rows or [])}, indent=1) + os.linesep)


if __name__ == "__main__":
    main()
