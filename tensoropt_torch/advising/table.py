"""The rows of an advice as texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensoropt_torch.advising.rows import AdviceRow
from tensoropt_torch.units import format_bytes, format_seconds

COLUMNS = (
    "model, batch",
    "machines",
    "devices",
    "strategy",
    "step",
    "tokens/s",
    "each",
    "MFU",
    "days",
    "price",
    "memory",
    "what it does",
    "",
)
_NONE = "-"


def cells_of(row: AdviceRow, mark: str) -> tuple[str, ...]:
    """By ``COLUMNS``. Without tokens, samples are counted."""
    head = (row.model, row.machine, str(row.num_devices), row.strategy)
    if row.time_s is None:
        return (*head, "does not fit", *[_NONE] * 5, _missing(row), _NONE, mark)
    speed = row.tokens_per_s or row.samples_per_s or 0.0
    unit = "" if row.tokens else " samples"
    return (
        *head,
        format_seconds(row.time_s),
        f"{_figure(speed)}{unit}",
        _figure(speed / row.num_devices),
        f"{row.mfu:.1%}",
        _figure(row.days or 0.0),
        _money(row),
        format_bytes(row.memory_bytes) + ("" if row.is_peak else " (sum)"),
        str(row.chosen),
        mark,
    )


def markdown_table(rows: Iterable[Sequence[str]], columns: Sequence[str] = COLUMNS) -> str:
    """Rows of texts in Markdown, where no text is an element of HTML or ends a cell."""
    lines = [columns, ["---"] * len(columns), *(map(_in_markdown, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _in_markdown(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _missing(row: AdviceRow) -> str:
    if row.memory_bytes == float("inf"):
        return "has no such strategy"
    return f"needs {format_bytes(row.memory_bytes)}, {format_bytes(row.missing_bytes)} too much"


def _money(row: AdviceRow) -> str:
    if row.money is None or row.price is None:
        return "not known"
    return f"{row.money:,.0f} {row.price.currency}".strip()


def _figure(value: float) -> str:
    """Three digits: ``12,300``, ``1.23``."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
