"""Which sets of mesh axes are measured: each needs process groups of its own, and there
are 3^k - 2^k - 1 of them on k axes of two devices."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.runtime.meshes import all_axis_sets

# So many process groups are made for all sets: those of 16 devices. On more devices
# sets of alike axes, over which collectives cost the same, are measured once.
FEW_GROUPS = 64
# More are not made.
MOST_GROUPS = 4096

MeshAxes = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class AxisSets:
    """Sets of mesh axes whose process groups may be made, ascending, and those whose may
    not, since there would be too many."""

    chosen: tuple[int, ...]
    left_out: tuple[int, ...] = ()

    def warn(self, what: str) -> None:
        """Says what is left out and with what consequence, if something is."""
        if self.left_out:
            total = len(self.chosen) + len(self.left_out)
            warnings.warn(
                f"{what} over {len(self.left_out)} of {total} sets of mesh axes are not "
                f"measured, since that takes more than {MOST_GROUPS} process groups: their times "
                "are computed from the cluster's description",
                stacklevel=3,
            )


def num_groups(sizes: Sequence[int], axes: int) -> int:
    """Process groups that an axis set needs; none if it is the whole job."""
    inside = math.prod(size for axis, size in enumerate(sizes) if axes >> axis & 1)
    outside = math.prod(sizes) // inside
    return outside if outside > 1 else 0


def sets_of_collectives(mesh_axes: MeshAxes) -> AxisSets:
    """Those over which collectives are measured: all where that takes few groups, else
    one of each kind of alike sets. Others take the times of theirs."""
    sizes = [size for size, _ in mesh_axes]
    every = all_axis_sets(sizes)
    if sum(num_groups(sizes, axes) for axes in every) <= FEW_GROUPS:
        return AxisSets(tuple(every))
    mesh = _C.Mesh(list(mesh_axes))
    return affordable(sizes, {mesh.canonical(axes) for axes in every})


def affordable(sizes: Sequence[int], wanted: Iterable[int], made: Iterable[int] = ()) -> AxisSets:
    """As many of these sets as ``MOST_GROUPS`` allows, those with the fewest groups first;
    the groups of ``made`` are there already."""
    there = set(made)
    left = MOST_GROUPS - sum(num_groups(sizes, axes) for axes in there)
    chosen, left_out = [], []
    for axes in sorted(set(wanted), key=lambda axes: (num_groups(sizes, axes), axes)):
        needed = 0 if axes in there else num_groups(sizes, axes)
        if needed <= left:
            left -= needed
            chosen.append(axes)
        else:
            left_out.append(axes)
    return AxisSets(tuple(sorted(chosen)), tuple(sorted(left_out)))
