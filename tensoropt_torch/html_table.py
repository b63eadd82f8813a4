"""Tables for notebooks, in HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a caption; texts are escaped. Without ``header`` each row starts with
    its name."""
    head = _row(header, "th") if header else ""
    first = "td" if header else "th"
    body = "".join(_row(row, "td", first) for row in rows)
    return (
        f'<table><caption style="text-align:left">{escape(title)}</caption>'
        f"<thead>{head}</thead><tbody>{body}</tbody></table>"
    )


def _row(cells: Sequence[str], tag: str, first: str = "") -> str:
    tags = [first or tag, *[tag] * (len(cells) - 1)]
    row = (
        f'<{t} style="text-align:left">{escape(c)}</{t}>' for t, c in zip(tags, cells, strict=True)
    )
    return f"<tr>{''.join(row)}</tr>"
