"""Charts as data: the script of a page (``charts.js``) draws them in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Line:
    """Points of one kind.

    Attributes:
        x, y: as many of each.
        texts: what is shown at a point under the pointer; none: nothing is.
        form: ``steps`` for frontiers, where a point holds until the next one; ``line``, or
            ``points`` that nothing joins; ``area``: a line that is filled to the axis.
        labels: that stand at points, by their index.
        faint: indices of points that count less.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    texts: Sequence[str] = ()
    form: Literal["steps", "line", "points", "area"] = "line"
    labels: Sequence[tuple[int, str]] = ()
    faint: Sequence[int] = ()


@dataclass(frozen=True)
class Mark:
    """A labelled line across the chart, at a value of ``axis``; ``name`` is by what a script finds
    it."""

    axis: Literal["x", "y"]
    value: float
    label: str
    name: str = ""


@dataclass(frozen=True)
class Chart:
    """Lines over two axes; the first is drawn last, above the others.

    Attributes:
        name: by which a page places it.
        label: what it shows, for those who do not see it.
        logarithmic: both axes, at first.
        equal: draw where both axes are equal.
        marks: lines across it.
        most_x: what lies beyond is drawn on demand only.
        scales: whether readers may choose logarithmic axes.
    """

    name: str
    label: str
    lines: Sequence[Line]
    x_title: str
    y_title: str
    logarithmic: bool = False
    equal: bool = False
    marks: Sequence[Mark] = ()
    most_x: float | None = None
    scales: bool = True

    @property
    def hides(self) -> bool:
        """Whether points lie beyond ``most_x``."""
        most = self.most_x
        return most is not None and any(x > most for line in self.lines for x in line.x)

    def data(self) -> dict[str, Any]:
        """As ``charts.js`` reads it."""
        return {
            "lines": [
                {
                    "name": line.name,
                    "x": [rounded(value) for value in line.x],
                    "y": [rounded(value) for value in line.y],
                    "texts": list(line.texts),
                    "form": line.form,
                    "labels": list(line.labels),
                    "faint": list(line.faint),
                }
                for line in self.lines
            ],
            "titles": [self.x_title, self.y_title],
            "logarithmic": self.logarithmic,
            "equal": self.equal,
            "marks": [vars(mark) for mark in self.marks],
            "mostX": self.most_x,
        }


def rounded(value: float) -> float:
    """To six digits, which nobody sees the difference of and which makes pages smaller."""
    return float(f"{value:.6g}")
