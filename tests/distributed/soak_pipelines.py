"""Random pipelines against one process (``random_pipelines.py``), until so many were compared.

    make soak-pipelines COUNT=300        # python -m tests.distributed.soak_pipelines --count 300

Half of them on 2 processes, half on 4. Adds up what was run in
benchmarks/results/pipelines.json: another run goes on with the seeds after those. Ends with 1 at a
mismatch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.distributed.module.test_random_pipelines import outcomes
from tests.distributed.random_pipelines import Outcome, drawn

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "pipelines.json"
WORLDS = (2, 4)
AT_ONCE = 12  # seeds


def row_of(world: int, seeds: tuple[int, int], found: list[Outcome]) -> dict[str, Any]:
    """What was run on so many processes of the seeds from the first to the last."""
    compared = [drawn(outcome.seed, world)[0] for outcome in found if not outcome.refused]
    models = Counter(pipeline.model for pipeline in compared)
    schedules = Counter(pipeline.options["schedule"] for pipeline in compared)
    stages = Counter(str(pipeline.options["stages"]) for pipeline in compared)
    return {
        "processes": world,
        "seeds": list(seeds),
        "compared": len(compared),
        "refused": len(found) - len(compared),
        "mismatches": sum(bool(outcome.errors) for outcome in found),
        "models": dict(sorted(models.items())),
        "schedules": dict(sorted(schedules.items())),
        "stages": dict(sorted(stages.items())),
    }


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="pipelines to be compared")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if RESULT.exists():
        rows = json.loads(RESULT.read_text())["rows"]
    seed = first = 1 + max((row["seeds"][1] for row in rows), default=0)
    found: dict[int, list[Outcome]] = {world: [] for world in WORLDS}
    while any(_compared(several) < given.count / len(WORLDS) for several in found.values()):
        world = min(WORLDS, key=lambda world: _compared(found[world]))
        seeds = range(seed, seed + AT_ONCE)
        several = outcomes(seeds, world)
        for outcome in several:
            print(outcome, flush=True)
        found[world] += several
        seed += AT_ONCE
        own = [row_of(world, (first, seed - 1), several) for world, several in found.items()]
        _write([*rows, *own])
    wrong = [str(outcome) for several in found.values() for outcome in several if outcome.errors]
    print(f"{sum(map(_compared, found.values()))} pipelines, {len(wrong)} mismatches", *wrong)
    return 1 if wrong else 0


def _compared(found: list[Outcome]) -> int:
    return sum(not outcome.refused for outcome in found)


def _write(rows: list[dict[str, Any]]) -> None:
    sums = {name: sum(row[name] for row in rows) for name in ("compared", "mismatches")}
    RESULT.write_text(json.dumps({**sums, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
