"""Measured collectives of some devices of a job, such as those of a stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensoropt_torch import _C
from tensoropt_torch.config.cluster import COLLECTIVES
from tensoropt_torch.space.settings import MeasuredCurve


def inner_curves(
    curves: Iterable[MeasuredCurve],
    mesh_axes: Sequence[tuple[int, int]],
    inner: Sequence[tuple[int, int]],
) -> tuple[MeasuredCurve, ...]:
    """The curves of groups of devices that follow each other, all of which are busy, of those that
    were measured on ``mesh_axes``. ``inner`` are the axes of one of these groups, (size, level) as
    of ``Settings.mesh_axes``; no curves are known if the mesh does not end with them."""
    outer = len(mesh_axes) - len(inner)
    if outer < 0 or tuple(mesh_axes[outer:]) != tuple(inner):
        return ()
    mesh = _C.Mesh(list(mesh_axes))
    measured = {(name, axes): samples for name, axes, samples in curves}
    # Of many sets of axes that are alike one is measured for all.
    alike = {(name, mesh.canonical(axes)): samples for (name, axes), samples in measured.items()}
    found = []
    for own in range(1, 1 << len(inner)):
        axes = own << outer
        for name in COLLECTIVES:
            samples = measured.get((name, axes)) or alike.get((name, mesh.canonical(axes)))
            if samples:
                found.append((name, own, samples))
    return tuple(found)
