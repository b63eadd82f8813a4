"""Reads pages of reports as text and tables, without a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "input", "link", "br", "img", "rect", "use"}


class ReadPage(HTMLParser):
    """The elements of a page: texts of tables by caption, ids, and where links go."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(text)
        self.close()
        assert not self._open, "an element is not closed"

    @staticmethod
    def of(path: Path) -> ReadPage:
        return ReadPage(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given[key] or "" for key in ("src", "href") if key in given]
        if tag == "table":
            self._rows, self._caption = [], ""
        if "data-splits" in given:  # which the script fills
            self._caption = f"Of the script: {self._caption}"
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")
        if re.fullmatch(r"h\d", tag):
            self.headings.append((int(tag[1]), ""))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes nothing"
        if tag == "table":
            cells = [[re.sub(r"\s+", " ", cell).strip() for cell in row] for row in self._rows]
            self.tables.setdefault(self._caption.strip(), cells)

    def handle_data(self, data: str) -> None:
        if "caption" in self._open:
            self._caption += data
        elif "td" in self._open or "th" in self._open:
            self._rows[-1][-1] += data
        elif self._open and re.fullmatch(r"h\d", self._open[-1]):
            level, text = self.headings[-1]
            self.headings[-1] = level, text + data

    def table(self, caption: str) -> list[list[str]]:
        """The first table whose caption begins so, without its head."""
        return next(rows[1:] for name, rows in self.tables.items() if name.startswith(caption))
