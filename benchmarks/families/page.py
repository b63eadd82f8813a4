"""The tables of docs/families.md, made from the JSON file and written into the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.page import fill_tables, rows_of

Record = Mapping[str, Any]

LONGEST = 160  # letters of a reason


def fill_page(record: Record, page: Path) -> None:
    """Replace the tables in the page."""
    families = record["families"]
    tables = {"verdicts": verdicts(families), "families": table(families)}
    fill_tables(page, tables)


def verdicts(families: Record) -> str:
    """How many families have which verdict."""
    counts = Counter(found["verdict"] for found in families.values())
    bits = sum(bool(found.get("same_bits")) for found in families.values())
    rows = [[verdict, str(count)] for verdict, count in counts.most_common()]
    return rows_of(["verdict", "families"], [*rows, ["of these with the same bits", str(bits)]])


def table(families: Record) -> str:
    """A row for each family that was built."""
    built = {name: found for name, found in families.items() if found["verdict"] != "not built"}
    return rows_of(
        ["family", "class", "operators", "verdict"], [_row(*item) for item in built.items()]
    )


def _row(name: str, found: Record) -> list[str]:
    loss = "" if found.get("loss") == "own" else ", squares of its outputs"
    head = f"{found.get('head', '-')}{loss}"
    return [name, head, str(found.get("operators", "-")), _verdict(found)]


def _verdict(found: Record) -> str:
    if found["verdict"] == "equal":
        return "equal, same bits" if found["same_bits"] else "equal"
    why = found.get("why") or "; ".join(found.get("wrong", ()))
    text = " ".join(why.split()).replace("|", "/").replace("<", "&lt;")
    return f"{found['verdict']}: {text[:LONGEST]}"
