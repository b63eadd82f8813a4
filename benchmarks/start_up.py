"""How long a job takes from the start of its processes to the end of the first step.

    python benchmarks/start_up.py --ranks 2 4 --repeats 5

A GPT trains with DDP and under the plan that ``find_strategy`` picks without options, in a folder
of measurements that is empty at first (cold) and has what the cold job has left (warm). The jobs
run in turn, all of them several times: ratios are those of jobs of the same turn. Writes
benchmarks/results/start_up.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from operator import itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import start_up_job
from benchmarks.machine import machine
from benchmarks.ranks import format_ratio, ratio_figures, results_of_ranks
from tensoropt_torch.measure.kept.files import write_atomically

RESULTS = Path(__file__).parent / "results" / "start_up.json"
REPEATS = 5
COLD, WARM, DDP = "ours, cold", "ours, warm", start_up_job.DDP

# Seconds of parts, by way to start.
Turn = dict[str, dict[str, float]]


def turn(ranks: int) -> Turn:
    """A cold job, and after it two of each other way in turn, of which the faster counts."""
    with tempfile.TemporaryDirectory() as home:
        found = {COLD: job(ranks, COLD, home)}
        for way in (DDP, WARM, DDP, WARM):
            seconds = job(ranks, way, home)
            found[way] = min(seconds, found.get(way, seconds), key=itemgetter("all"))
    return found


def job(ranks: int, way: str, home: str) -> dict[str, float]:
    """Seconds of its parts."""
    environment = {"TENSOROPT_HOME": home}
    seconds: dict[str, float] = results_of_ranks(
        start_up_job.__file__, ranks, environment=environment, arguments=[way]
    )
    return seconds


def figures(turns: list[Turn]) -> dict[str, Any]:
    """By way to start: medians of its parts, all of the times in all, and ratios to DDP."""
    found: dict[str, Any] = {}
    for way in turns[0]:
        jobs = [one[way] for one in turns]
        found[way] = {
            "median_s": {part: statistics.median(j[part] for j in jobs) for part in jobs[0]},
            "all_s": [j["all"] for j in jobs],
            "to_ddp": ratio_figures([one[way]["all"] / one[DDP]["all"] for one in turns]),
        }
    return found


def format_way(found: dict[str, Any]) -> str:
    """What a start takes, its parts, and the ratio to DDP."""
    seconds = dict(found["median_s"])
    whole = seconds.pop("all")
    parts = ", ".join(f"{part} {value:.2f}" for part, value in seconds.items())
    return f"{whole:.2f} s, {format_ratio(found['to_ddp'])} of DDP ({parts})"


def main() -> None:
    """Time the jobs, print what they take, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for ranks in arguments.ranks:
        found = figures([turn(ranks) for _ in range(arguments.repeats)])
        results[f"{ranks} processes"] = {"machine": machine(), "ways": found}
        for way, row in found.items():
            print(f"{ranks} processes, {way}: {format_way(row)}")
        write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
