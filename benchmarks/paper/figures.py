"""The figures, drawn from the JSON records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.paper.published import SEARCH_SECONDS

Record = Mapping[str, Any]
Points = Sequence[Sequence[float]]

WIDTH, HEIGHT = 3.6, 3.0  # inches of one panel
LOG_FROM = 8.0

STYLE = {
    "font.size": 8,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.fontsize": 6,
    "savefig.bbox": "tight",
    "svg.fonttype": "none",
    "svg.hashsalt": "tensoropt",  # equal numbers give equal files
}


def draw_figures(results: Mapping[str, Record], folder: Path) -> None:
    """Write every figure whose study is among the results, as SVG."""
    with matplotlib.rc_context(STYLE):
        for name, (study, draw) in FIGURES.items():
            if study in results:
                figure = draw(results[study])
                figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def panels(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def draw_curve(axes: Axes, points: Points, label: str, **style: Any) -> None:
    """A frontier as a step: between two points the smaller one is what there is."""
    gigabytes = [memory / 1e9 for memory, _ in points]
    times = [time_s for _, time_s in points]
    drawn = {"marker": "." if len(points) < 30 else None, "linewidth": 1, **style}
    axes.plot(gigabytes, times, drawstyle="steps-post", label=label, **drawn)


def choose_scales(axes: Axes) -> None:
    """Logarithmic where values differ by much; else the ticks would say little."""
    for axis, limits in (("x", axes.dataLim.intervalx), ("y", axes.dataLim.intervaly)):
        least, most = limits
        if least > 0 and most > LOG_FROM * least:
            axes.set(**{f"{axis}scale": "log"})


def common_legend(figure: Figure, axes: Axes) -> None:
    """One legend under all panels, for what is drawn in each of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def label_costs(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("memory per device (GB)")
    axes.set_ylabel("step time (s)")


def frontiers(record: Record) -> Figure:
    """Each model: our frontier with its turning point, and the baselines."""
    figure, grid = panels(len(record["models"]), 2)
    for model, row in zip(record["models"].values(), grid, strict=True):
        for (devices, frontier), axes in zip(model["devices"].items(), row, strict=True):
            points = frontier["points"]
            draw_curve(axes, points, "TensorOpt", color="black", linewidth=1.6)
            memory, time_s = points[frontier["turning_point"]]
            axes.plot(memory / 1e9, time_s, "r*", label="turning point", zorder=5)
            for name, theirs in frontier["baselines"].items():
                draw_curve(axes, theirs, name)
            choose_scales(axes)
            label_costs(axes, f"{model['title']}, {devices} devices")
    common_legend(figure, grid[0][0])
    return figure


def split(record: Record) -> Figure:
    """Each model on 16 devices: computing and network time along the frontier."""
    models = record["models"].values()
    figure, grid = panels(1, len(models))
    for model, axes in zip(models, grid[0], strict=True):
        rows = model["devices"]["16"]["split"]
        gigabytes = [row["memory_bytes"] / 1e9 for row in rows]
        for part, label in (("compute_s", "computing"), ("network_s", "network")):
            axes.plot(gigabytes, [row[part] for row in rows], ".-", linewidth=1, label=label)
        axes.set_ylim(bottom=0)
        label_costs(axes, model["title"])
        axes.legend()
    return figure


def model_size(record: Record) -> Figure:
    """Transformer against Transformer-S."""
    figure, [[axes]] = panels(1, 1)
    for name in ("transformer", "transformer-s"):
        if name in record["models"]:
            model = record["models"][name]
            draw_curve(axes, model["devices"]["16"]["points"], model["title"])
    choose_scales(axes)
    label_costs(axes, "Two sizes, 16 devices")
    axes.legend()
    return figure


def bandwidth(record: Record) -> Figure:
    """Each model: bandwidth between machines above, inside machines below."""
    models = record["models"].values()
    figure, grid = panels(2, len(models))
    for row, kind, title in (
        (0, "between_machines", "between machines"),
        (1, "inside_machines", "inside machines"),
    ):
        for model, axes in zip(models, grid[row], strict=True):
            for label, frontier in model[kind].items():
                points = frontier["points"]
                draw_curve(axes, points, label)
                memory, time_s = points[frontier["turning_point"]]
                axes.plot(memory / 1e9, time_s, "k*", markersize=5)
            choose_scales(axes)
            label_costs(axes, f"{model['title']}: {title}")
            axes.legend()
    return figure


def parallelism(record: Record) -> Figure:
    """Each model: the least step time by device count, for each memory limit."""
    models = record["models"].values()
    limits = list(record["memory_limits"])
    figure, grid = panels(len(limits), len(models))
    for limit, row in zip(limits, grid, strict=True):
        for model, axes in zip(models, row, strict=True):
            for system in model["rows"][0]["systems"]:
                found = [
                    (entry["devices"], entry["systems"][system]["fastest"][limit])
                    for entry in model["rows"]
                ]
                fitting = [(devices, point[1]) for devices, point in found if point is not None]
                style = {"color": "black", "linewidth": 1.6} if system == "TensorOpt" else {}
                axes.plot(
                    *zip(*fitting, strict=True) if fitting else ([], []),
                    ".-",
                    label=system,
                    **style,
                )
            counts = [entry["devices"] for entry in model["rows"]]
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.set_yscale("log")
            axes.set_title(f"{model['title']}, devices of {limit}")
            axes.set_xlabel("devices")
            axes.set_ylabel("step time (s)")
    common_legend(figure, grid[0][0])
    return figure


def search_time(record: Record) -> Figure:
    """Seconds of the search, ours and the paper's; hatched: more than that."""
    figure, [[axes]] = panels(1, 1)
    models = record["models"]
    names = [*next(iter(models.values()))["runs"], "paper: FT-LDP", "paper: FT-Elimination"]
    width = 0.8 / len(names)
    for i, label in enumerate(names):
        for j, (name, model) in enumerate(models.items()):
            theirs = dict(zip(names[-2:], SEARCH_SECONDS.get(name, (None, None)), strict=True))
            run = model["runs"].get(label, {"search_s": theirs.get(label)})
            value = run.get("search_s", run.get("more_than_s"))
            if value is not None:
                hatch = None if "search_s" in run else "////"
                axes.bar(j + i * width, value, width, color=f"C{i}", hatch=hatch)
        axes.bar(0, 0, color=f"C{i}", label=label)
    axes.set_xticks([j + 0.4 for j in range(len(models))], [m["title"] for m in models.values()])
    axes.set_yscale("log")
    axes.set_ylabel("search (s)")
    figure.set_figwidth(2 * WIDTH)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def growth(record: Record) -> Figure:
    """Search time and memory against layers, devices and configs."""
    figure, grid = panels(2, 3)
    titles = {"layers": "layers", "devices": "devices", "max_configs": "configs at most"}
    for column, (key, title) in enumerate(titles.items()):
        runs = [run for run in record[key]["runs"] if "search_s" in run]
        sizes = [run["size"] for run in runs]
        for part, label in (("search_s", "search"), ("costs_s", "cost tables")):
            grid[0][column].plot(sizes, [run[part] for run in runs], ".-", label=label)
        peaks = [(run["peak_rss_bytes"] - run["rss_before_bytes"]) / 1e9 for run in runs]
        grid[1][column].plot(sizes, peaks, ".-")
        for axes, unit in ((grid[0][column], "seconds"), (grid[1][column], "memory (GB)")):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel(title)
            axes.set_ylabel(unit)
        grid[0][column].legend()
    return figure


# By file name: the study, and the function that draws it.
FIGURES: Mapping[str, tuple[str, Callable[[Record], Figure]]] = {
    "frontiers": ("frontiers", frontiers),
    "network_time": ("frontiers", split),
    "model_size": ("frontiers", model_size),
    "bandwidth": ("bandwidth", bandwidth),
    "parallelism": ("parallelism", parallelism),
    "search_time": ("search_time", search_time),
    "growth": ("growth", growth),
}
