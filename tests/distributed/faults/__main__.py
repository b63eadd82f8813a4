"""Faults at random points of small jobs, and a table of what followed.

    make faults COUNT=100 SEED=1       # python -m tests.distributed.faults --count 100 --seed 1

Says each as it comes, and ends with 1 if one is not as it has to be. ``--table`` adds rows to
benchmarks/results/faults.json, in place of those of the same seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from tests.distributed.faults.cases import Case, Faults
from tests.distributed.faults.job import TIMEOUT_S
from tests.distributed.faults.runs import WITHIN_S, Server

RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "faults.json"


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="it ends after these")
    parser.add_argument("--table", action="store_true", help="keep the rows")
    given = parser.parse_args()
    end_s, wrong = time.monotonic() + given.seconds, 0
    with tempfile.TemporaryDirectory() as folder, Server() as server:
        faults = Faults(server, Path(folder))
        for seed in range(given.seed, given.seed + given.count):
            if time.monotonic() > end_s:
                print(f"go on with --seed {seed}")
                break
            row = faults.run(Case.of(seed)).row()
            wrong += bool(row["wrong"])
            print(json.dumps(row), flush=True)
            if given.table:
                _keep(row)
    print(f"{wrong} are wrong")
    return 1 if wrong else 0


def _keep(row: dict[str, Any]) -> None:
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    rows = sorted([r for r in rows if r["seed"] != row["seed"]] + [row], key=lambda r: r["seed"])
    seconds = [r["seconds"] for r in rows if r["seconds"] is not None]
    sums = {
        "machine": machine(),
        "faults": len(rows),
        "wrong": sum(bool(r["wrong"]) for r in rows),
        "came": sum(bool(r["in"]) for r in rows),
        "outcomes": dict(sorted(Counter(f"{r['fault']}: {r['how']}" for r in rows).items())),
        "time_limit_s": TIMEOUT_S,
        "allowed_s": WITHIN_S,
        "longest_s": max(seconds, default=None),
    }
    RESULT.write_text(json.dumps({**sums, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
