"""The tables of docs/paper.md, made from the JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.page import rows_of
from benchmarks.paper.published import SEARCH_SECONDS

Record = Mapping[str, Any]


def tables_of(results: Mapping[str, Record]) -> dict[str, str]:
    """By name, those whose study is among the results."""
    return {
        name: make(results[study]) for name, (study, make) in TABLES.items() if study in results
    }


def seconds(value: float | None) -> str:
    """Two significant digits, more from 100 s on."""
    if value is None:
        return "-"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.2g} s"


def gigabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e9:.2f} GB"


def _search_seconds(run: Record) -> str:
    if "search_s" in run:
        return seconds(run["search_s"])
    reason = "memory" if run["out_of_memory"] else "time limit"
    return f"more than {seconds(run['more_than_s'])} ({reason})"


def search_time(record: Record) -> str:
    """Ours beside the paper's."""
    rows = []
    for name, model in record["models"].items():
        runs = model["runs"]
        theirs = [seconds(value) for value in SEARCH_SECONDS.get(name, (None, None))]
        ldp = runs["FT-LDP"]
        rows.append(
            [
                model["title"],
                seconds(ldp.get("capture_s")),
                seconds(ldp.get("costs_s")),
                *(_search_seconds(run) for run in runs.values()),
                *theirs,
            ]
        )
    ours = [*next(iter(record["models"].values()))["runs"]]
    theirs = ["paper: FT-LDP", "paper: FT-Elimination"]
    return rows_of(["model", "capture", "cost tables", *ours, *theirs], rows)


def frontiers(record: Record) -> str:
    """Ends and turning point."""
    rows = []
    for model in record["models"].values():
        for devices, frontier in model["devices"].items():
            points = frontier["points"]
            chosen = (points[0], points[frontier["turning_point"]], points[-1])
            ends = [f"{gigabytes(m)}, {time_s:.3g} s" for m, time_s in chosen]
            rows.append([model["title"], model["optimizer"], devices, str(len(points)), *ends])
    head = ["model", "optimizer", "devices", "points", "smallest", "turning point", "fastest"]
    return rows_of(head, rows)


def baselines(record: Record) -> str:
    """The smallest and the fastest strategy of each on 16 devices."""
    rows = []
    for model in record["models"].values():
        frontier = model["devices"]["16"]
        for name, points in {"TensorOpt": frontier["points"], **frontier["baselines"]}.items():
            ends = [f"{gigabytes(m)}, {time_s:.3g} s" for m, time_s in (points[:1] + points[-1:])]
            rows.append([model["title"], name, *(ends or ["-", "-"])])
    return rows_of(["model", "system", "smallest", "fastest"], rows)


def bandwidth(record: Record) -> str:
    """Turning points by network."""
    rows = []
    for model in record["models"].values():
        networks = {
            **{f"between machines {k}": v for k, v in model["between_machines"].items()},
            **{f"inside machines {k}": v for k, v in model["inside_machines"].items()},
        }
        for name, frontier in networks.items():
            points = frontier["points"]
            memory, time_s = points[frontier["turning_point"]]
            fastest = f"{gigabytes(points[-1][0])}, {points[-1][1]:.3g} s"
            rows.append([model["title"], name, f"{gigabytes(memory)}, {time_s:.3g} s", fastest])
    return rows_of(["model", "network", "turning point", "fastest"], rows)


def parallelism(record: Record) -> str:
    """The step time within each memory limit, by device count."""
    rows = []
    for model in record["models"].values():
        counts = [str(row["devices"]) for row in model["rows"]]
        for limit in record["memory_limits"]:
            for system in model["rows"][0]["systems"]:
                fastest = [row["systems"][system]["fastest"][limit] for row in model["rows"]]
                times = ["-" if point is None else f"{point[1]:.3g}" for point in fastest]
                rows.append([model["title"], limit, system, *times])
    return rows_of(["model", "memory", "system", *(f"{n}" for n in counts)], rows)


def growth(record: Record) -> str:
    """Search seconds and memory by what grows."""
    rows = []
    titles = {"layers": "layers", "devices": "devices", "max_configs": "configs at most"}
    for key, title in titles.items():
        for run in record[key]["runs"]:
            peak = run["peak_rss_bytes"] - run["rss_before_bytes"] if "search_s" in run else None
            rows.append(
                [
                    title,
                    str(run["size"]),
                    seconds(run.get("costs_s")),
                    _search_seconds(run),
                    gigabytes(peak),
                    str(run["num_points"]),
                ]
            )
    return rows_of(["grows", "to", "cost tables", "search", "memory", "points"], rows)


def losses(record: Record) -> str:
    """Factors by which coarse and ordered spaces are worse."""
    rows = []
    for entry in record["coarse"]:
        for run in entry["by_max_configs"]:
            space = f"at most {run['max_configs']} configs"
            rows.append([*_loss_columns(entry, space), *_loss_numbers(run, entry["all_s"])])
    for entry in record["ordered"]:
        rows.append([*_loss_columns(entry, "ordered"), *_loss_numbers(entry, entry["full_s"])])
    return rows_of(["model", "devices", "space", "factor", "search", "search of all"], rows)


def _loss_columns(entry: Record, space: str) -> list[str]:
    return [entry["model"], str(entry["devices"]), space]


def _loss_numbers(run: Record, whole_s: float | None) -> list[str]:
    factor = "-" if run["factor"] is None else f"{run['factor']:.4f}"
    return [factor, seconds(run["search_s"]), seconds(whole_s)]


def claims(record: Record) -> str:
    """Which statements hold, and for which models not."""
    rows = []
    for claim in record["claims"]:
        failing = [title for title, model in claim["by_model"].items() if not model["holds"]]
        rows.append(
            [
                claim["statement"],
                claim["definition"],
                "yes" if claim["holds"] else "no",
                ", ".join(failing) or "-",
            ]
        )
    return rows_of(["statement", "checked as", "holds", "not for"], rows)


# By name: the study, and the function that makes the table.
TABLES = {
    "search_time": ("search_time", search_time),
    "frontiers": ("frontiers", frontiers),
    "baselines": ("frontiers", baselines),
    "bandwidth": ("bandwidth", bandwidth),
    "parallelism": ("parallelism", parallelism),
    "growth": ("growth", growth),
    "losses": ("losses", losses),
    "claims": ("claims", claims),
}
