"""Small pictures by matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.pages.optional import needed_for
from tensoropt_torch.units import format_costs

_INCHES = (4.0, 2.6)


def draw_frontier(
    points: Sequence[tuple[float, float]], named: dict[int, list[str]], axes: Any = None
) -> Any:
    """Draws (memory_bytes, time_s) points on matplotlib's ``axes``, by default of a figure of
    their own, and returns these axes. ``named`` are names of points by index.

    Raises:
        TensorOptError: matplotlib is not installed.
    """
    with needed_for("a plot"):
        from matplotlib.figure import Figure

    if axes is None:
        axes = Figure(figsize=_INCHES, layout="constrained").subplots()
    memory = [memory_bytes / 2**30 for memory_bytes, _ in points]
    times = [time_s * 1e3 for _, time_s in points]
    axes.step(memory, times, where="post", marker=".")
    for index, names in named.items():
        axes.annotate(", ".join(names), (memory[index], times[index]), fontsize="small")
    axes.set_xlabel("memory per device (GiB)")
    axes.set_ylabel("step time (ms)")
    return axes


def picture_html(points: Sequence[tuple[float, float]], named: dict[int, list[str]]) -> str:
    """The drawing as an HTML element that needs no other file; empty where matplotlib is not
    installed."""
    try:
        figure = draw_frontier(points, named).figure
    except TensorOptError:
        return ""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=80)
    ends = " to ".join(format_costs(*point) for point in (points[0], points[-1]))
    text = base64.b64encode(data.getvalue()).decode()
    return f'<img alt="Cost frontier, from {ends}" src="data:image/png;base64,{text}"/>'
