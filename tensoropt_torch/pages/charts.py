"""Interactive charts by plotly, as data that the script of a page draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tensoropt_torch.pages.optional import needed_for

# Of Okabe and Ito: told apart by people who see few colours; markers differ as well.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#7a5195")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "x", "hexagon")


@dataclass(frozen=True)
class Line:
    """Points of one kind.

    Attributes:
        x, y: as many of each.
        texts: what is shown at a point under the pointer.
        form: ``steps`` for frontiers, where a point holds until the next one; ``line``, or
            ``points`` that nothing joins.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    texts: Sequence[str]
    form: Literal["steps", "line", "points"] = "line"


@dataclass(frozen=True)
class Chart:
    """Lines over two axes.

    Attributes:
        name: by which a page places it.
        label: what it shows, for those who do not see it.
        logarithmic: both axes, at first.
        equal: draw where both axes are equal.
    """

    name: str
    label: str
    lines: Sequence[Line]
    x_title: str
    y_title: str
    logarithmic: bool = False
    equal: bool = False


def rounded(value: float) -> float:
    """To six digits, which nobody sees the difference of and which makes pages smaller."""
    return float(f"{value:.6g}")


def figure_json(chart: Chart) -> str:
    """The data and layout of a chart, as JSON that may stand inside of a script element.

    Raises:
        TensorOptError: plotly is not installed.
    """
    with needed_for("a report"):
        import plotly.graph_objects as go

    figure = go.Figure()
    for index, line in enumerate(chart.lines):
        colour = _COLOURS[index % len(_COLOURS)]
        figure.add_scatter(
            name=line.name,
            x=[rounded(value) for value in line.x],
            y=[rounded(value) for value in line.y],
            text=list(line.texts),
            hovertemplate="%{text}<extra>%{fullData.name}</extra>",
            mode="markers" if line.form == "points" else "lines+markers",
            line={"color": colour, "shape": "hv" if line.form == "steps" else "linear"},
            marker={"symbol": _SYMBOLS[index % len(_SYMBOLS)], "size": 7},
        )
    if chart.equal:
        ends = _ends(chart.lines)
        figure.add_scatter(
            name="equal", x=ends, y=ends, mode="lines", hoverinfo="skip", line={"dash": "dot"}
        )
    kind = "log" if chart.logarithmic else "linear"
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 70, "r": 20, "t": 20, "b": 60},
        legend={"orientation": "h", "y": -0.2},
        showlegend=len(chart.lines) > 1,
        xaxis={"title": chart.x_title, "type": kind},
        yaxis={"title": chart.y_title, "type": kind},
        hovermode="closest",
    )
    text: str = figure.to_json()
    return text


def library() -> str:
    """The script of plotly.

    Raises:
        TensorOptError: plotly is not installed.
    """
    with needed_for("a report"):
        from plotly import offline

    text: str = offline.get_plotlyjs()
    return text


def _ends(lines: Sequence[Line]) -> list[float]:
    values = [value for line in lines for value in (*line.x, *line.y)]
    return [min(values), max(values)] if values else []
