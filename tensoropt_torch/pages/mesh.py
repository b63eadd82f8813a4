"""Splits drawn on the mesh: a cell for each device, with a stripe for each dim that is cut. Stripes
of one dim have one hue, those of the same part one shade."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_CELLS = 64
MOST_IN_A_ROW = 8
_WIDTH, _STRIPE, _GAP = 16, 13, 4
# Hues in degrees of dims by how their names begin, else one that is made of the name: the batch,
# features that a product makes and sums over, heads, positions, stored rows and columns.
_HUES = {"b": 210, "n": 30, "k": 350, "h": 140, "s": 280, "S0": 45, "S1": 170, "d0": 235, "d1": 75}

# Entries of a config or layout that cut nothing.
_WHOLE = ("-", "R", "P")


@dataclass(frozen=True)
class Stripe:
    """What a device has of one dim: ``part`` of ``parts``."""

    dim: str
    part: int
    parts: int

    @property
    def colour(self) -> str:
        """In CSS."""
        if not self.dim:
            return "hsl(0 0% 80%)"
        key = self.dim if self.dim in _HUES else self.dim[:1]
        hue = _HUES.get(key, 37 * sum(map(ord, self.dim)) % 360)
        return f"hsl({hue} 75% {90 - 30 * self.part / max(1, self.parts - 1):.0f}%)"


@dataclass(frozen=True)
class Cell:
    """A device, or several where they are too many: ``part`` of ``parts`` is its, drawn at
    ``x`` and ``y``, by dim in ``stripes``."""

    x: int
    y: int
    part: int
    parts: int
    stripes: tuple[Stripe, ...]


@dataclass(frozen=True)
class Drawing:
    """A config on a mesh.

    Attributes:
        name: of the drawing, unique on the page.
        cells: by rank.
        words: the same in words.
        cell_height: in pixels, as all lengths.
    """

    name: str
    cells: tuple[Cell, ...]
    words: str
    cell_height: int

    @property
    def width(self) -> int:
        return max(cell.x for cell in self.cells) + _WIDTH

    @property
    def cell_width(self) -> int:
        return _WIDTH

    @property
    def height(self) -> int:
        return self.cells[-1].y + self.cell_height

    @property
    def stripe_height(self) -> int:
        return _STRIPE


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
            split, _, kept = config.partition(" ")
            entries = split.split(",") if sizes else []
            height = _STRIPE * max(1, len({e for e in entries if _cuts(e)})) + _GAP
            cells = tuple(_cells(entries, _drawn(sizes), height))
            words = split_in_words(entries, sizes)
            self.found[key] = Drawing(name, cells, _with_kept(words, kept), height)
        return self.found[key]


# What is said of operators besides their split.
_KEPT = {"again": "runs again in backward", "recomputed": "runs again in backward"}


def _with_kept(words: str, kept: str) -> str:
    return f"{words}; {_KEPT.get(kept, kept)}" if kept else words


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


def _cells(entries: Sequence[str], sizes: Sequence[int], height: int) -> list[Cell]:
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
                x, y = 0, y + height
            else:
                # Wider between groups of the outer axes.
                x += _WIDTH + (0 if moved == len(sizes) - 1 else _GAP)
        part = 0
        for at, size, cuts in zip(place, sizes, cutting, strict=True):
            part = part * size + at if cuts else part
        cells.append(Cell(x, y, part, parts, _stripes(entries, place, sizes)))
        before = place
    return cells


def _stripes(
    entries: Sequence[str], place: Sequence[int], sizes: Sequence[int]
) -> tuple[Stripe, ...]:
    """Of the device at a place of the mesh."""
    found: dict[str, Stripe] = {}
    for entry, at, size in zip(entries, place, sizes, strict=False):
        if _cuts(entry):
            before = found.get(entry, Stripe(entry, 0, 1))
            found[entry] = Stripe(entry, before.part * size + at, before.parts * size)
    return tuple(found.values()) or (Stripe("", 0, 1),)


def _axes_of_rows(sizes: Sequence[int]) -> int:
    """How many of the outer axes go down the rows."""
    for first in range(len(sizes)):
        if math.prod(sizes[first:]) <= MOST_IN_A_ROW:
            return first
    return max(len(sizes) - 1, 0)
