"""Published training speeds beside predictions on the same machines.

    python -m benchmarks.published               # all rows
    python -m benchmarks.published --rows 15 45 --best  # some, with the best that we find
    python -m benchmarks.published --draw        # the table and the picture of what is there

Rows that need what is not there are listed with what that is. Nothing is fitted to a row: one
set of constants describes a kind of machine (``clusters``). Writes
benchmarks/results/published.json and published.svg.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.published.predict import predicted
from benchmarks.published.rows import Row, read_rows

RESULTS = Path(__file__).resolve().parents[1] / "results" / "published.json"


def error_of(found: dict[str, Any], what: str) -> float | None:
    """By how much the prediction is above what was published, as a share of it; None for rows
    with two ends, and where one of both is not there."""
    published, ends = found["published"][what], found["predicted"]
    if published is None or len(ends) != 1 or ends[0] is None:
        return None
    return float(ends[0][what] / published - 1)


def summary(rows: list[Row], results: dict[str, Any]) -> dict[str, Any]:
    """Errors of speeds and memory by source."""
    found: dict[str, Any] = {}
    for source in dict.fromkeys(row.source for row in rows):
        own = [results[str(row.id)] for row in rows if row.source == source]
        for what in ("tokens_per_s", "memory_gib"):
            errors = [e for e in (error_of(result, what) for result in own) if e is not None]
            if errors:
                found.setdefault(source, {})[what] = {
                    "rows": len(errors),
                    "mean_error": statistics.mean(errors),
                    "mean_absolute_error": statistics.mean(map(abs, errors)),
                    "worst_error": max(errors, key=abs),
                }
    return found


def _text(ends: list[dict[str, float] | None], what: str) -> str:
    values = [f"{end[what]:,.0f}" if end else "none" for end in ends]
    return " to ".join(values)


def print_table(rows: list[Row], results: dict[str, Any]) -> None:
    """A line for each row, then the errors."""
    print("id  model, devices, recomputation: tokens/s/device published, predicted; GiB; our best")
    for row in rows:
        found = results[str(row.id)]
        published, ends = found["published"], found["predicted"]
        error = error_of(found, "tokens_per_s")
        best = "-"
        if "our_best" in found:
            point = found["our_best"]
            best = f"{point['tokens_per_s']:,.0f}" if point else "does not fit"
        print(
            f"{row.id:3} {row.model[:18]}, {row.devices}, {row.recompute}: "
            f"{published['tokens_per_s'] or 0:,.0f}, {_text(ends, 'tokens_per_s')}"
            f"{'' if error is None else f' ({error:+.0%})'}; "
            f"{published['memory_gib'] or '-'}, {_text(ends, 'memory_gib')}; {best}"
        )


def draw(rows: list[Row], results: dict[str, Any], output: Path) -> None:
    """Predicted against published speeds, one kind of marker for each source."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "published"
    axes = Figure(figsize=(5.5, 5.0), layout="constrained").subplots()
    for source, marker in zip(dict.fromkeys(row.source for row in rows), "osD^vP*X", strict=False):
        pairs = []
        for row in rows:
            found = results[str(row.id)]
            published = found["published"]["tokens_per_s"]
            if row.source == source and published:
                pairs += [(published, end["tokens_per_s"]) for end in found["predicted"] if end]
        if pairs:
            axes.plot(*zip(*pairs, strict=True), marker, label=source, markersize=5, alpha=0.7)
    ends = axes.get_xlim()
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="published", ylabel="predicted")
    axes.set_title("tokens per second and device", fontsize="medium")
    axes.legend(title="source", fontsize="small")
    axes.figure.savefig(output, metadata={"Date": None})


def main() -> None:
    """Predicts the rows that are asked for, and writes all that there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", help="their numbers; by default all")
    parser.add_argument("--best", action="store_true", help="also search the whole frontier")
    parser.add_argument("--draw", action="store_true", help="predict nothing")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows, sources = read_rows()
    able = [row for row in rows if not row.missing]
    output: Path = arguments.output
    record = json.loads(output.read_text()) if output.exists() else {}
    results: dict[str, Any] = record.get("rows", {})
    for row in able if not arguments.draw else ():
        if arguments.rows and row.id not in arguments.rows:
            continue
        began = time.perf_counter()
        results[str(row.id)] = results.get(str(row.id), {}) | predicted(row, arguments.best)
        print(f"row {row.id}: {time.perf_counter() - began:.1f} s", flush=True)
        _write(output, rows, sources, results)
    shown = [row for row in able if str(row.id) in results]
    print_table(shown, results)
    for source, errors in summary(shown, results).items():
        print(f"{source}: {json.dumps(errors)}")
    for row in rows:
        if row.missing:
            print(f"{row.id:3} {row.model}: not there: {', '.join(row.missing)}")
    _write(output, rows, sources, results)
    draw(shown, results, output.with_suffix(".svg"))


def _write(
    output: Path, rows: list[Row], sources: dict[str, dict[str, str]], results: dict[str, Any]
) -> None:
    shown = [row for row in rows if str(row.id) in results]
    record = {
        "sources": sources,
        "errors": summary(shown, results),
        "missing": {str(row.id): row.missing for row in rows if row.missing},
        "rows": results,
    }
    output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
