"""Splits drawn on the mesh."""

from __future__ import annotations

import pytest

from tensoropt_torch.pages.mesh import MOST_CELLS, Drawings


@pytest.mark.parametrize(
    ("config", "sizes", "parts", "words"),
    [
        ("b0,b0", (2, 2), [0, 1, 2, 3], "b0 split 4 ways"),
        ("b0,-", (2, 2), [0, 0, 1, 1], "b0 split 2 ways; the same on 2 devices"),
        ("-,n", (2, 3), [0, 1, 2, 0, 1, 2], "n split 3 ways; the same on 2 devices"),
        ("S0,S1", (2, 2), [0, 1, 2, 3], "S0 split 2 ways, S1 split 2 ways"),
        ("R,+0", (2, 2), [0, 0, 0, 0], "whole on every device"),
        ("", (), [0], "whole on every device"),
    ],
)
def test_devices_with_the_same_part_have_its_number(
    config: str, sizes: tuple[int, ...], parts: list[int], words: str
) -> None:
    drawing = Drawings().of(config, sizes)
    assert [cell.part for cell in drawing.cells] == parts
    assert drawing.words == words


def test_groups_of_the_outer_axis_stand_apart() -> None:
    x = [cell.x for cell in Drawings().of("b,b", (2, 2)).cells]
    assert x[2] - x[1] > x[1] - x[0] == x[3] - x[2]


def test_many_devices_are_drawn_as_groups() -> None:
    drawing = Drawings().of("b,-,n", (16, 4, 16))
    assert len(drawing.cells) == 64 <= MOST_CELLS
    assert [cell.part for cell in drawing.cells[:5]] == [0, 0, 0, 0, 1]
    assert drawing.words == "b split 16 ways, n split 16 ways; the same on 4 devices"


def test_a_drawing_is_made_once() -> None:
    drawings = Drawings()
    first = drawings.of("b", (2,))
    assert drawings.of("b", (2,)) is first
    assert drawings.of("n", (2,)).name != first.name
