"""The page of an advice: answers first, then a picture of time and money, then all rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensoropt_torch.advising.rows import OURS, AdviceRow
from tensoropt_torch.advising.table import COLUMNS, cells_of
from tensoropt_torch.pages.charts import Chart, Line
from tensoropt_torch.pages.page import Page

# Columns whose cells stay in one line.
_FIGURES = ("devices", "step", "tokens/s", "each", "MFU", "days", "price")


def advice_page(
    title: str,
    rows: Sequence[AdviceRow],
    marks: Mapping[AdviceRow, str],
    answers: Sequence[str],
    notes: Sequence[str],
) -> str:
    """The whole page, as HTML."""
    return Page("advice.html.jinja", title).html(
        list(_charts(rows)),
        answers=answers,
        columns=COLUMNS,
        figures=_FIGURES,
        rows=[cells_of(row, marks.get(row, "")) for row in rows],
        reasons=_reasons(rows),
        notes=notes,
    )


def _reasons(rows: Sequence[AdviceRow]) -> dict[str, list[str]]:
    """Why ours is faster than others, or is not, by where that is."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.because:
            found.setdefault(row.where, []).append(row.because)
    return found


def _charts(rows: Sequence[AdviceRow]) -> Iterator[Chart]:
    """For each model days over money, a line for each kind of machine; over devices, where a price
    is not known."""
    for number, model in enumerate(dict.fromkeys(row.model for row in rows)):
        own = [row for row in rows if row.model == model and row.fits]
        priced = all(row.money is not None for row in own)
        # Ours have the first colours, and are drawn above the others.
        ordered = sorted(own, key=lambda row: row.strategy != OURS)
        names = dict.fromkeys(_name(row) for row in ordered)
        lines = [_line(name, [row for row in own if _name(row) == name], priced) for name in names]
        currency = next((row.price.currency for row in own if row.price), "")
        yield Chart(
            f"advice-{number}",
            f"Days over {'price' if priced else 'devices'} for {model}",
            lines,
            f"price ({currency})" if priced else "devices",
            "days",
            logarithmic=True,
        )


def _name(row: AdviceRow) -> str:
    return row.machine if row.strategy == OURS else f"{row.strategy}, {row.machine}"


def _line(name: str, rows: Sequence[AdviceRow], priced: bool) -> Line:
    ours = all(row.strategy == OURS for row in rows)
    return Line(
        name,
        [(row.money or 0.0) if priced else row.num_devices for row in rows],
        [row.days or 0.0 for row in rows],
        [f"{row.num_devices} devices: {row.days or 0:.3g} days, {row.chosen}" for row in rows],
        "line" if ours else "points",
    )
