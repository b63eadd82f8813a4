"""Statements of the paper's section 5, checked on our numbers.

Each has a definition that says what is true or false, for every model by itself;
a claim holds if it does for all models. Nothing here plans anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
Points = Sequence[Sequence[float]]

PROMINENCE = 0.1  # of a turning point, as a share of the frontier's height
NEAR = 1.1  # "nearly the same" is within 10 %
SAME_TIME = 1.02  # two frontiers within 1 % each, and rounding


@dataclass(frozen=True)
class Claim:
    """``check`` gives, by model, whether it holds and the numbers that say so."""

    name: str
    statement: str
    definition: str
    study: str
    check: Callable[[Record], dict[str, Any]]


def check_claims(results: Mapping[str, Record]) -> list[dict[str, Any]]:
    """The outcome of every claim whose study is among the results."""
    outcomes = []
    for claim in CLAIMS:
        if claim.study not in results:
            continue
        by_model = {
            model["title"]: claim.check(model) for model in results[claim.study]["models"].values()
        }
        outcomes.append(
            {
                "claim": claim.name,
                "statement": claim.statement,
                "definition": claim.definition,
                "holds": all(outcome["holds"] for outcome in by_model.values()),
                "by_model": by_model,
            }
        )
    return outcomes


def turning_points(points: Points, prominence: float = PROMINENCE) -> list[int]:
    """Where the frontier is farthest below the line that joins its ends, on
    logarithmic scales from 0 to 1; local extremes that stand out by ``prominence``.
    """
    found: list[int] = []
    extreme, rising = 0, False
    depths = _depths(points)
    for index, depth in enumerate(depths):
        if rising == (depth > depths[extreme]):
            extreme = index
        elif abs(depth - depths[extreme]) >= prominence:
            if rising:
                found.append(extreme)
            extreme, rising = index, not rising
    return found


def _depths(points: Points) -> list[float]:
    (least, slowest), (most, fastest) = points[0], points[-1]
    if most <= least or slowest <= fastest:
        return [0.0 for _ in points]
    width, height = math.log(most / least), math.log(slowest / fastest)
    return [
        1 - math.log(memory / least) / width - math.log(time_s / fastest) / height
        for memory, time_s in points
    ]


def _one_turning_point(model: Record) -> dict[str, Any]:
    frontier = model["devices"]["16"]
    found = turning_points(frontier["points"])
    return {
        "holds": len(found) == 1,
        "turning_points": [frontier["points"][i] for i in found],
    }


def _flat_computing(model: Record) -> dict[str, Any]:
    computing = [row["compute_s"] for row in model["devices"]["16"]["split"]]
    ratio = max(computing) / min(computing)
    return {"holds": ratio <= NEAR, "most_over_least": ratio}


def _memory_buys_network_time(model: Record) -> dict[str, Any]:
    rows = model["devices"]["16"]["split"]
    first, last = rows[0], rows[-1]
    saved_s = sum(first[part] - last[part] for part in ("network_s", "compute_s"))
    network_saved_s = first["network_s"] - last["network_s"]
    share = network_saved_s / saved_s if saved_s > 0 else None
    return {
        "holds": share is not None and share >= 0.9,
        "network_s": [first["network_s"], last["network_s"]],
        "share_of_the_time_saved": share,
    }


def _never_above_mesh_tensorflow(model: Record) -> dict[str, Any]:
    frontier = model["devices"]["16"]
    points, theirs = frontier["points"], frontier["baselines"]["Mesh-TensorFlow"]
    if not theirs:
        return {"holds": False, "reason": "Mesh-TensorFlow has no strategy"}
    above = max(_time_within(points, m * SAME_TIME) / t for m, t in theirs)
    memory = points[0][0] / theirs[0][0]
    return {
        "holds": above <= SAME_TIME and memory < 1,
        "our_time_over_theirs_at_most": above,
        "our_least_memory_over_theirs": memory,
    }


def _time_within(points: Points, limit: float) -> float:
    return min((time_s for memory, time_s in points if memory <= limit), default=math.inf)


def _optcnn_is_the_fastest_end(model: Record) -> dict[str, Any]:
    frontier = model["devices"]["16"]
    (memory, time_s), theirs = frontier["points"][-1], frontier["baselines"]["OptCNN"]
    if not theirs:
        return {"holds": False, "reason": "OptCNN has no strategy"}
    ratio = theirs[-1][1] / time_s
    return {
        "holds": 1 / SAME_TIME <= ratio <= SAME_TIME,
        "their_time_over_ours": ratio,
        "their_memory_over_ours": theirs[-1][0] / memory,
    }


def _tofu_is_the_small_end(model: Record) -> dict[str, Any]:
    frontier = model["devices"]["16"]
    theirs = frontier["baselines"]["ToFu"]
    if not theirs:
        return {"holds": False, "reason": "ToFu has no strategy"}
    ratio = theirs[0][0] / frontier["points"][0][0]
    return {"holds": ratio <= NEAR, "their_memory_over_our_least": ratio}


def _tofu_slows_down(model: Record) -> dict[str, Any]:
    times = {}
    for devices in ("8", "16"):
        theirs = model["devices"][devices]["baselines"]["ToFu"]
        times[devices] = theirs[0][1] if theirs else None
    known = None not in times.values()
    return {"holds": known and times["16"] > times["8"], "time_s_by_devices": times}


def _same_turning_memory(model: Record) -> dict[str, Any]:
    bytes_by_factor = {
        label: frontier["points"][frontier["turning_point"]][0]
        for label, frontier in model["between_machines"].items()
    }
    ratio = max(bytes_by_factor.values()) / min(bytes_by_factor.values())
    return {"holds": ratio <= NEAR, "most_over_least": ratio, "memory_bytes": bytes_by_factor}


def _eight_are_enough(model: Record) -> dict[str, Any]:
    row = next((r for r in model["rows"] if r["devices"] == 8), None)
    if row is None:
        return {"holds": False, "reason": "8 devices were not planned"}
    fits = {
        limit: [name for name, s in row["systems"].items() if s["fastest"][limit] is not None]
        for limit in next(iter(row["systems"].values()))["fastest"]
    }
    holds = any(
        "TensorOpt" in names and not {"data parallel", "OptCNN"} & set(names)
        for names in fits.values()
    )
    return {"holds": holds, "feasible_by_memory_of_the_device": fits}


CLAIMS = (
    Claim(
        "one turning point",
        "The frontier of each model has one turning point.",
        "16 devices: the depth below the line joining the ends, both axes logarithmic and from "
        f"0 to 1, has exactly one local extreme that stands out by {PROMINENCE:g}.",
        "frontiers",
        _one_turning_point,
    ),
    Claim(
        "flat computing time",
        "The computing time is nearly the same along the frontier.",
        "16 devices: the longest computing time of the sampled points is at most "
        f"{NEAR:g} times the shortest.",
        "frontiers",
        _flat_computing,
    ),
    Claim(
        "memory buys network time",
        "With more memory there is less network time.",
        "16 devices: of the time by which the fastest point beats the smallest one, at least "
        "90 % is network time.",
        "frontiers",
        _memory_buys_network_time,
    ),
    Claim(
        "never above Mesh-TensorFlow",
        "TensorOpt is never slower than Mesh-TensorFlow and works in less memory.",
        "16 devices: for every point of Mesh-TensorFlow one of ours has at most "
        f"{SAME_TIME:g} times its memory and its time, and our least memory is below theirs.",
        "frontiers",
        _never_above_mesh_tensorflow,
    ),
    Claim(
        "OptCNN is the fastest end",
        "OptCNN finds the fastest end of the frontier.",
        f"16 devices: its time is that of our fastest point, up to a factor of {SAME_TIME:g}.",
        "frontiers",
        _optcnn_is_the_fastest_end,
    ),
    Claim(
        "ToFu is the small end",
        "ToFu finds the end of the frontier with little memory.",
        f"16 devices: its memory is at most {NEAR:g} times our least.",
        "frontiers",
        _tofu_is_the_small_end,
    ),
    Claim(
        "ToFu slows down",
        "ToFu is slower on 16 devices than on 8.",
        "The step time of its smallest point is larger on 16 devices than on 8.",
        "frontiers",
        _tofu_slows_down,
    ),
    Claim(
        "turning point and bandwidth",
        "The memory of the turning point hardly depends on the bandwidth between machines.",
        "16 devices, 0.5, 1 and 4 times the bandwidth: the largest memory of the turning point "
        f"is at most {NEAR:g} times the least.",
        "bandwidth",
        _same_turning_memory,
    ),
    Claim(
        "8 devices are enough",
        "On 8 devices TensorOpt can run where data parallel and OptCNN cannot.",
        "On 8 devices, with 90 % of 16 or of 32 GiB: a point of ours fits and none of data "
        "parallel and OptCNN does.",
        "parallelism",
        _eight_are_enough,
    ),
)
