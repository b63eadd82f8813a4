"""Published training speeds beside predictions on the same machines.

    python -m benchmarks.published               # all rows
    python -m benchmarks.published --rows 15 45 --best  # some, with the best that we find
    python -m benchmarks.published --draw        # the table and the picture of what is there

Rows that need what is not there are listed with what that is. One set of constants describes a
kind of machine (``clusters``), and one of them is calibrated on half of the rows (``calibrate``).
Writes benchmarks/results/published.json and published.svg.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.published.calibrate import calibrated_on, calibrated_share
from benchmarks.published.predict import predicted
from benchmarks.published.rows import Row, read_rows

RESULTS = Path(__file__).resolve().parents[1] / "results" / "published.json"


STAGES = {"before": "before", "links": "links", "after": "predicted"}  # by what the table says


def error_of(found: dict[str, Any], what: str, key: str = "predicted") -> float | None:
    """By how much the prediction is above what was published, as a share of it; None for rows
    with two ends, and where one of both is not there."""
    published, ends = found["published"][what], found[key]
    if published is None or len(ends) != 1 or ends[0] is None:
        return None
    return float(ends[0][what] / published - 1)


def is_between(found: dict[str, Any], key: str) -> bool:
    """Whether the published speed is between the two predictions of a row."""
    ends = [end["tokens_per_s"] for end in found[key] if end]
    return min(ends) <= float(found["published"]["tokens_per_s"]) <= max(ends)


def _errors(rows: list[Row], results: dict[str, Any], what: str) -> dict[str, Any]:
    """Of these rows, before any figure was changed, with those of the links, and after attention's
    share was calibrated as well; empty if there is none."""
    found = {}
    for when, key in STAGES.items():
        errors = [error_of(results[str(row.id)], what, key) for row in rows]
        known = [error for error in errors if error is not None]
        if known:
            found[when] = {
                "rows": len(known),
                "mean_error": statistics.mean(known),
                "mean_absolute_error": statistics.mean(map(abs, known)),
                "worst_error": max(known, key=abs),
            }
    return found


def summary(rows: list[Row], results: dict[str, Any]) -> dict[str, Any]:
    """Errors of speeds and memory by source and half; and how many of the rows with two
    predictions were published between them."""
    calibrated = {row.id for row in calibrated_on(rows)}
    rows = [row for row in rows if str(row.id) in results]
    found: dict[str, Any] = {}
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        halves = {
            "all": own,
            "calibrated on": [row for row in own if row.id in calibrated],
            "judged": [row for row in own if row.id not in calibrated],
        }
        found[source] = {}
        for what in ("tokens_per_s", "memory_gib"):
            by_half = {half: _errors(halves[half], results, what) for half in halves}
            if by_half["all"]:
                found[source][what] = {half: errors for half, errors in by_half.items() if errors}
        pairs = [results[str(row.id)] for row in own if not row.has_one_end]
        if pairs:
            found[source]["between two predictions"] = {
                "rows": len(pairs),
            } | {when: sum(is_between(r, key) for r in pairs) for when, key in STAGES.items()}
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


def draw(
    rows: list[Row], labels: dict[str, str], calibrated: set[int], results: dict[str, Any]
) -> Figure:
    """Predicted against published speeds, one kind of marker for each source, hollow for the rows
    that were calibrated on."""
    figure = Figure(figsize=(5.5, 5.0), layout="constrained")
    axes = figure.subplots()
    for source, marker in zip(dict.fromkeys(row.source for row in rows), "osD^vP*X", strict=False):
        own = [row for row in rows if row.source == source]
        color = axes.plot([], [], marker, label=labels[source], markersize=5)[0].get_color()
        for row in own:
            found = results[str(row.id)]
            ends = [end["tokens_per_s"] for end in found["predicted"] if end]
            fill = "none" if row.id in calibrated else color
            published = [found["published"]["tokens_per_s"]] * len(ends)
            axes.plot(published, ends, marker, color=color, markerfacecolor=fill, markersize=5)
    limits = axes.get_xlim()
    axes.plot(limits, limits, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="published", ylabel="predicted")
    axes.set_title("tokens per second and device", fontsize="medium")
    axes.legend(title="source", fontsize="small")
    return figure


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
    for source, by_what in summary(rows, results).items():
        for what, errors in by_what.items():
            print(f"{source}, {what}: {json.dumps(errors)}")
    half = calibrated_on(rows)
    if all(str(row.id) in results for row in half):
        share = calibrated_share(half, results)
        print(f"attention: a share of {share:.0%} fits rows {[row.id for row in half]} best")
    for row in rows:
        if row.missing:
            print(f"{row.id:3} {row.model}: not there: {', '.join(row.missing)}")
    _write(output, rows, sources, results)
    calibrated = {row.id for row in half}
    labels = {
        letter: f"{letter}, {source['what'].split(',')[0]}" for letter, source in sources.items()
    }
    matplotlib.rcParams["svg.hashsalt"] = "published"
    figure = draw(shown, labels, calibrated, results)
    figure.savefig(output.with_suffix(".svg"), metadata={"Date": None})


def _write(
    output: Path, rows: list[Row], sources: dict[str, dict[str, str]], results: dict[str, Any]
) -> None:
    record = {
        "sources": sources,
        "errors": summary(rows, results),
        "calibrated_on": [row.id for row in calibrated_on(rows)],
        "missing": {str(row.id): row.missing for row in rows if row.missing},
        "rows": results,
    }
    output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
