"""Advice: what training takes and costs on kinds and numbers of machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensoropt_torch.advising.page import advice_page
from tensoropt_torch.advising.rows import OURS, AdviceRow
from tensoropt_torch.advising.table import COLUMNS, cells_of, markdown_table
from tensoropt_torch.advising.work import Work
from tensoropt_torch.html_table import html_table
from tensoropt_torch.pages.page import write_page
from tensoropt_torch.planner.points import knee_index


@dataclass(frozen=True)
class Advice:
    """Rows by model, kind of machine and number of devices, each with what others would do
    there below it, where that was asked for.

    Attributes:
        work: how much is trained.
        rows: all of them.
        notes: what holds for all: what was searched, what is counted, where prices are from.
    """

    work: Work
    rows: tuple[AdviceRow, ...]
    notes: tuple[str, ...]

    def __iter__(self) -> Iterator[AdviceRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        ours = [row for row in self.rows if row.strategy == OURS]
        fit = sum(row.fits for row in ours)
        best = "; ".join(self.answers)
        return f"Advice({fit} of {len(ours)} choices fit for {self.work}: {best or 'none fits'})"

    def _repr_html_(self) -> str:
        marks = self.marks
        cells = [cells_of(row, marks.get(row, "")) for row in self.rows]
        return html_table(self.title, COLUMNS, cells)

    @property
    def title(self) -> str:
        """How much is trained, and of what."""
        return f"{self.work} of {', '.join(dict.fromkeys(row.model for row in self.rows))}"

    @property
    def marks(self) -> dict[AdviceRow, str]:
        """The rows that are the cheapest, the fastest and the knee of their model."""
        found: dict[AdviceRow, str] = {}
        for model in dict.fromkeys(row.model for row in self.rows):
            for name, row in marked(self.rows, model).items():
                found[row] = f"{found[row]}, {name}" if row in found else name
        return found

    @property
    def answers(self) -> list[str]:
        """The marked rows in a sentence each."""
        return [f"{mark}: {_in_words(row)}" for row, mark in self.marks.items()]

    def to_records(self) -> list[dict[str, Any]]:
        """The rows as plain data, marks included."""
        marks = self.marks
        return [row.to_record() | {"mark": marks.get(row) or None} for row in self.rows]

    def to_markdown(self) -> str:
        """The table in Markdown."""
        marks = self.marks
        return markdown_table([cells_of(row, marks.get(row, "")) for row in self.rows])

    def report(self, path: str | Path) -> None:
        """Writes the page of it to one HTML file.

        Raises:
            TensorOptError: Jinja2 is not installed, or the file cannot be written.
        """
        write_page(path, advice_page(self.title, self.rows, self.marks, self.answers, self.notes))


def marked(rows: Sequence[AdviceRow], model: str) -> dict[str, AdviceRow]:
    """Of a model's rows of ours that fit, by name: the cheapest, the fastest, and the knee of time
    and money, where less time begins to cost much more."""
    fit = [row for row in rows if row.model == model and row.strategy == OURS and row.fits]
    found: dict[str, AdviceRow] = {}
    priced = sorted(_cost_and_hours(fit), key=lambda one: one[:2])
    if priced:
        found["cheapest"] = priced[0][2]
    if fit:
        found["fastest"] = min(fit, key=lambda row: (row.hours or 0.0, row.money or 0.0))
    front: list[tuple[float, float, AdviceRow]] = []
    for one in priced:
        if not front or one[1] < front[-1][1]:
            front.append(one)
    if len(front) > 2:
        found["knee"] = front[knee_index([one[:2] for one in front])][2]
    return found


def _cost_and_hours(rows: Sequence[AdviceRow]) -> Iterator[tuple[float, float, AdviceRow]]:
    """Money, if all prices are in one currency, else nothing."""
    currencies = {row.price.currency if row.price else None for row in rows if row.price}
    for row in rows:
        if row.money is not None and row.hours is not None and len(currencies) == 1:
            yield row.money, row.hours, row


def _in_words(row: AdviceRow) -> str:
    money = f", {row.money:,.0f} {row.price.currency}" if row.money and row.price else ""
    hours = row.hours or 0.0
    took = f"{hours / 24:.3g} days" if hours >= 48 else f"{hours:.3g} hours"
    return f"{row.where}: {took}{money} ({row.chosen})"
