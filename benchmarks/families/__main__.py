"""Captures a small model of every family of transformers, and compares graph and module.

python -m benchmarks.families                             # all of them, some half an hour
python -m benchmarks.families --models phimoe yoso --jobs 1
python -m benchmarks.families --draw                      # the page from what is there

Results of families that are not asked for stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.families.heads import families
from benchmarks.families.page import fill_page
from benchmarks.families.processes import studied
from benchmarks.machine import machine
from benchmarks.paper.__main__ import write

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "families.json"
PAGE = ROOT / "docs" / "families.md"
LIMIT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(families()), choices=list(families()))
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--draw", action="store_true", help="run nothing")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = Console()
    names = () if options.draw else options.models
    for family, found in studied(names, options.jobs, options.limit):
        add(options.result, family, found)
        why = found.get("why") or "; ".join(found.get("wrong", ()))
        console.print(f"{family}: {found['verdict']} {why[:200]}", markup=False, highlight=False)
    if options.result == RESULT:
        fill_page(json.loads(RESULT.read_text()), PAGE)


def add(file: Path, family: str, found: dict[str, Any]) -> None:
    """Write the result of one family beside those that are there."""
    there = json.loads(file.read_text())["families"] if file.exists() else {}
    there[family] = found
    ordered = {name: there[name] for name in families() if name in there}
    write(file, {"machine": machine(), "families": ordered})


if __name__ == "__main__":
    main()
