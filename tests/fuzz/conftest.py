"""Adds up the inputs that were given, where ``TENSOROPT_FUZZ_RESULT`` names a file for that."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.fuzz.counts import GIVEN


def pytest_sessionfinish(session: pytest.Session) -> None:
    name = os.environ.get("TENSOROPT_FUZZ_RESULT")
    if not name:
        return
    path = Path(name)
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    row = {
        "seed": int(os.environ.get("TENSOROPT_FUZZ_SEED", "1")),
        "inputs": sum(GIVEN.values()),
        "crashes": session.testsfailed,
        "of": dict(sorted(GIVEN.items())),
    }
    rows = sorted([r for r in rows if r["seed"] != row["seed"]] + [row], key=lambda r: r["seed"])
    sums = {key: sum(r[key] for r in rows) for key in ("inputs", "crashes")}
    path.write_text(json.dumps({**sums, "rows": rows}, indent=1) + "\n")
