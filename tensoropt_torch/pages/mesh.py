"""Splits drawn on the mesh: a cell for each device, those that do the same part alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_CELLS = 64
MOST_IN_A_ROW = 16
_WIDTH, _HEIGHT, _GAP = 14, 16, 3

# Entries of a config or layout that cut nothing.
_WHOLE = ("-", "R", "P")


@dataclass(frozen=True)
class Cell:
    """A device, or several where they are too many: ``part`` of ``parts`` is its, drawn at
    ``x`` and ``y``."""

    x: int
    y: int
    part: int
    parts: int

    @property
    def hue(self) -> int:
        """In degrees; far from those of other parts."""
        return round(360 * self.part / self.parts)


@dataclass(frozen=True)
class Drawing:
    """A config on a mesh.

    Attributes:
        name: of the drawing, unique on the page.
        cells: by rank.
        words: the same in words.
    """

    name: str
    cells: tuple[Cell, ...]
    words: str

    @property
    def width(self) -> int:
        return max(cell.x for cell in self.cells) + _WIDTH

    @property
    def cell_width(self) -> int:
        return _WIDTH

    @property
    def height(self) -> int:
        return self.cells[-1].y + _HEIGHT

    @property
    def cell_height(self) -> int:
        return _HEIGHT


@dataclass
class Drawings:
    """The drawings of a page, each made once."""

    found: dict[tuple[str, tuple[int, ...]], Drawing] = field(default_factory=dict)

    def of(self, config: str, sizes: tuple[int, ...]) -> Drawing:
        """The drawing of a config such as ``b0,n,-`` or a layout such as ``S0,R,R``, on a
        mesh with axes of these sizes, outermost first."""
        key = (config, sizes)
        if key not in self.found:
            name = f"mesh-{len(self.found)}"
            entries = config.split(",") if sizes else []
            cells = tuple(_cells(entries, _drawn(sizes)))
            self.found[key] = Drawing(name, cells, split_in_words(entries, sizes))
        return self.found[key]


def split_in_words(entries: Sequence[str], sizes: Sequence[int]) -> str:
    """E.g. ``b0 over 4 devices, n over 2; the same on 2``."""
    over: dict[str, int] = {}
    same = 1
    for entry, size in zip(entries, sizes, strict=True):
        if _cuts(entry):
            over[entry] = over.get(entry, 1) * size
        else:
            same *= size
    if not over:
        return "whole on every device"
    text = ", ".join(f"{entry} split {count} ways" for entry, count in over.items())
    return f"{text}; the same on {same} devices" if same > 1 else text


def _cuts(entry: str) -> bool:
    return entry not in _WHOLE and not entry.startswith("+")


def _drawn(sizes: Sequence[int]) -> tuple[int, ...]:
    """The outermost axes, as many as there is room for."""
    counts = itertools.accumulate(sizes, lambda a, b: a * b)
    return tuple(size for size, count in zip(sizes, counts, strict=True) if count <= MOST_CELLS)


def _cells(entries: Sequence[str], sizes: Sequence[int]) -> list[Cell]:
    """In rows of the inner axes, as many as there is room for."""
    cutting = [_cuts(entry) for entry in entries[: len(sizes)]]
    parts = math.prod(size for size, cuts in zip(sizes, cutting, strict=True) if cuts)
    in_rows = _axes_of_rows(sizes)
    cells: list[Cell] = []
    x, y, before = 0, 0, None
    for place in itertools.product(*(range(size) for size in sizes)):
        if before is not None:
            moved = next(i for i, (a, b) in enumerate(zip(place, before, strict=True)) if a != b)
            if moved < in_rows:
                x, y = 0, y + _HEIGHT
            else:
                # Wider between groups of the outer axes.
                x += _WIDTH + (0 if moved == len(sizes) - 1 else _GAP)
        part = 0
        for at, size, cuts in zip(place, sizes, cutting, strict=True):
            part = part * size + at if cuts else part
        cells.append(Cell(x, y, part, parts))
        before = place
    return cells


def _axes_of_rows(sizes: Sequence[int]) -> int:
    """How many of the outer axes go down the rows."""
    for first in range(len(sizes)):
        if math.prod(sizes[first:]) <= MOST_IN_A_ROW:
            return first
    return max(len(sizes) - 1, 0)
