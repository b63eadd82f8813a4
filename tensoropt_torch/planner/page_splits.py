"""How each layer is split in every plan that a page looks into, as data for its script: a table of
each of them in HTML would be half of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt_torch.layer_names import listed_names
from tensoropt_torch.pages.mesh import Drawing, Drawings
from tensoropt_torch.planner.described_points import PointView
from tensoropt_torch.planner.folding import FoldedChoice
from tensoropt_torch.units import format_part

NOT_THERE = -1


def splits_of(
    choices: Sequence[FoldedChoice], points: Sequence[PointView], drawings: Drawings
) -> dict[str, Any]:
    """Rows of layers, each with a label, all its names if these are several, its operator, and of
    every point the number of a drawing, or ``NOT_THERE``, and its time."""
    sizes = [point.details.description.sizes for point in points]
    numbers: dict[str, int] = {}
    found: list[Drawing] = []

    def number(config: str, of: tuple[int, ...]) -> int:
        if not config:
            return NOT_THERE
        drawing = drawings.of(config, of)
        if drawing.name not in numbers:
            numbers[drawing.name] = len(found)
            found.append(drawing)
        return numbers[drawing.name]

    rows = [
        (
            _label(choice),
            listed_names(choice.names) if len(choice.names) > 1 else "",
            choice.operator,
            [number(*pair) for pair in zip(choice.configs, sizes, strict=True)],
            [format_part(time_s) if time_s else "" for time_s in choice.times],
        )
        for choice in choices
    ]
    return {"rows": rows, "drawings": [(d.name, d.width, d.height, d.words) for d in found]}


def _label(choice: FoldedChoice) -> str:
    count = len(choice.names)
    return choice.label if count == 1 else f"{choice.label} ({count})"
