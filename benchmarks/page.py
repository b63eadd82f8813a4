"""Tables in pages of the documentation, between ``<!-- table: name -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replaces these tables of the page, by name; others stay as they are.

    Raises:
        ValueError: the page has no place for one.
    """
    text = page.read_text()
    missing = tables.keys() - {match[2] for match in _MARKED.finditer(text)}
    if missing:
        raise ValueError(f"'{page}' has no table {', '.join(sorted(missing))}")

    def filled(match: re.Match[str]) -> str:
        table = tables.get(match[2])
        return match[0] if table is None else f"{match[1]}\n{table}\n\n{match[3]}"

    new = _MARKED.sub(filled, text)
    if new != text:
        page.write_text(new)


def rows_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
