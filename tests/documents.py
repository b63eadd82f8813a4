"""The fenced blocks of README.md and docs/*.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    line: int
    language: str
    body: str

    @property
    def first(self) -> str:
        return self.body.partition("\n")[0]

    @property
    def file(self) -> str | None:
        """The file that the block is, if it says so."""
        found = re.fullmatch(r"# (\w+\.py)", self.first)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(text: str, document: str) -> list[Block]:
    return [
        Block(document, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in FENCE.finditer(text)
    ]


BLOCKS = [
    block
    for path in DOCUMENTS
    for block in blocks_of(path.read_text(), str(path.relative_to(ROOT)))
]
FILES = {block.file: block for block in BLOCKS if block.file}
