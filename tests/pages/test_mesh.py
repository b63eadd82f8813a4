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


def test_many_devices_are_drawn_in_rows_of_the_inner_axes() -> None:
    drawing = Drawings().of("-,-,b,b,b,b", (2,) * 6)
    rows: dict[int, list[int]] = {}
    for cell in drawing.cells:
        rows.setdefault(cell.y, []).append(cell.part)
    assert list(rows.values()) == [list(range(8)), list(range(8, 16))] * 4
    assert drawing.height == 8 * drawing.cell_height
    first, *others = ([c.x for c in drawing.cells if c.y == y] for y in rows)
    assert all(other == first for other in others)
    assert drawing.width == first[-1] + drawing.cell_width
    few = Drawings().of("b,b", (2, 2))
    assert few.height == few.cell_height


def test_splits_of_different_dims_look_different() -> None:
    drawings = Drawings()
    colours = [
        [stripe.colour for cell in drawings.of(config, (2, 2)).cells for stripe in cell.stripes]
        for config in ("b0,b0", "n,n", "S0,S0", "S1,S1", "-,-", "b0,n", "n,b0")
    ]
    assert len({tuple(one) for one in colours}) == len(colours)


def test_a_dim_that_is_cut_has_a_stripe() -> None:
    cells = Drawings().of("b0,n,b0", (2, 3, 2)).cells
    last = cells[-1].stripes
    assert [(one.dim, one.part, one.parts) for one in last] == [("b0", 3, 4), ("n", 2, 3)]
    assert [one.dim for one in Drawings().of("R,R", (2, 2)).cells[0].stripes] == [""]


def test_what_runs_again_is_said_and_no_split() -> None:
    drawings = Drawings()
    again, kept = drawings.of("d0,d0 again", (2, 2)), drawings.of("d0,d0", (2, 2))
    assert again.cells == kept.cells
    assert again.words == f"{kept.words}; runs again in backward"
