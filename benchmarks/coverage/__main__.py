"""Captures, plans and runs common models, and fills docs/models.md.

python -m benchmarks.coverage                             # all of them
python -m benchmarks.coverage --models llama t5 --strategies 4 --processes 2
python -m benchmarks.coverage --draw                      # the page from what is there

Results of models that are not asked for stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.coverage.page import fill_page
from benchmarks.coverage.study import study
from benchmarks.coverage.zoo import MODELS
from benchmarks.machine import machine
from benchmarks.paper.__main__ import write

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "coverage.json"
PAGE = ROOT / "docs" / "models.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--strategies", type=int, default=12)
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--draw", action="store_true", help="run nothing")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = Console()
    for name in () if options.draw else options.models:
        start = time.perf_counter()
        found = study(name, options.strategies, options.processes)
        _add(name, found)
        console.print(f"{name}: {_verdict(found)}, {time.perf_counter() - start:.0f} s")
    fill_page(json.loads(RESULT.read_text()), PAGE)


def _add(name: str, found: dict[str, Any]) -> None:
    """Write the result of one model beside those that are there."""
    models = json.loads(RESULT.read_text())["models"] if RESULT.exists() else {}
    models[name] = found
    ordered = {model: models[model] for model in MODELS if model in models}
    write(RESULT, {"machine": machine(), "models": ordered})


def _verdict(found: dict[str, Any]) -> str:
    if not found["captures"]:
        return found["error"]
    wrong = [text for run in found["runs"].values() for text in run["wrong"]]
    problems = [*found["differing_bits"], *wrong, *found["without_rule"]]
    return "; ".join(problem[:200] for problem in problems) or "all well"


if __name__ == "__main__":
    main()
