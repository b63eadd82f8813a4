"""The table of docs/models.md, made from the JSON file and written into the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import fill_tables, rows_of

Record = Mapping[str, Any]


def fill_page(record: Record, page: Path) -> None:
    """Replace the table in the page."""
    fill_tables(page, {"models": models_table(record)})


def models_table(record: Record) -> str:
    """A row for each model."""
    rows = [_row(name, model) for name, model in record["models"].items()]
    head = ["model", "operators", "same bits", "points on 2, 4, 8", "equal to one process"]
    return rows_of([*head, "operators without a rule"], rows)


def _row(name: str, model: Record) -> list[str]:
    if not model["captures"]:
        return [name, "-", "-", "-", "-", f"not captured: {model['error'][:80]}"]
    points = ", ".join(str(search["points"]) for search in model["searches"].values())
    return [
        name,
        str(model["operators"]),
        _same_bits(model["differing_bits"]),
        points,
        ", ".join(_run(count, run) for count, run in model["runs"].items()) or "-",
        ", ".join(_share(op, found) for op, found in model["without_rule"].items()) or "-",
    ]


def _same_bits(differing: Sequence[str]) -> str:
    if not differing:
        return "yes"
    return "but gradients" if all(name.startswith("gradient of") for name in differing) else "no"


def _run(processes: str, run: Record) -> str:
    if run["strategies"] == 0:
        return f"on {processes}: failed"
    return f"on {processes}: {run['strategies'] - len(run['wrong'])} of {run['strategies']}"


def _share(operator: str, found: Record) -> str:
    """With its share of the work if that is not nothing."""
    name = operator.removeprefix("aten.").removesuffix(".default")
    shares = [
        f"{100 * found[key]:.0f} % of {what}"
        for key, what in (("flops_share", "FLOPs"), ("parameter_share", "parameters"))
        if found[key] >= 0.005
    ]
    return f"`{name}` ({', '.join(shares)})" if shares else f"`{name}`"
