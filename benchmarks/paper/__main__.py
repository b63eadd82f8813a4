"""Runs studies, checks the paper's claims, draws figures and fills docs/paper.md.

python -m benchmarks.paper                # everything
python -m benchmarks.paper frontiers      # one study, then claims and figures
python -m benchmarks.paper --draw         # claims and figures from what is there
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.machine import machine
from benchmarks.page import fill_tables
from benchmarks.paper.claims import check_claims
from benchmarks.paper.figures import draw_figures
from benchmarks.paper.studies import STUDIES, Scope
from benchmarks.paper.tables import tables_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "paper"
PAGE = ROOT / "docs" / "paper.md"


def run_studies(names: Sequence[str], scope: Scope, folder: Path) -> None:
    """Run the studies, one JSON file for each."""
    console = Console()
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        start = time.perf_counter()
        record = STUDIES[name](scope)
        seconds = time.perf_counter() - start
        write(folder / f"{name}.json", {"machine": machine(), "seconds": seconds, **record})
        console.print(f"{name}: {seconds:.0f} s")


def report(folder: Path, page: Path) -> None:
    """Claims, figures and tables, from the JSON files that are there."""
    files = {name: folder / f"{name}.json" for name in STUDIES}
    results = {name: json.loads(f.read_text()) for name, f in files.items() if f.exists()}
    claims = check_claims(results)
    write(folder / "claims.json", {"claims": claims})
    draw_figures(results, folder)
    fill_tables(page, tables_of({**results, "claims": {"claims": claims}}))


def write(file: Path, record: dict[str, Any]) -> None:
    """Lists of numbers on one line each."""
    file.write_text(compact_json(record) + "\n")


def compact_json(value: Any, indent: str = "") -> str:
    """JSON with a line for each entry that holds no dicts or lists of lists."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        rows = [f"{json.dumps(k)}: {compact_json(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner + row for row in rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        rows = [compact_json(v, inner) for v in value]
        return "[\n" + ",\n".join(inner + row for row in rows) + f"\n{indent}]"
    return json.dumps(value)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("studies", nargs="*", metavar="study", help=", ".join(STUDIES))
    parser.add_argument("--draw", action="store_true", help="run no study")
    options = parser.parse_args()
    unknown = [name for name in options.studies if name not in STUDIES]
    if unknown:
        parser.error(f"no study {unknown[0]!r}; there are {', '.join(STUDIES)}")
    names = [] if options.draw else options.studies or list(STUDIES)
    run_studies(names, Scope(), RESULTS)
    report(RESULTS, PAGE)


if __name__ == "__main__":
    main()
