"""Predicted and measured steps of plans, each of which trains by itself.

    python benchmarks/predictions.py --ranks 2 4
    python benchmarks/predictions.py --ranks 4 --link 1gbit --models gpt wide

The models of step_time.py and of estimation_error.py, planned with ``find_strategy`` as it is
without options, and nothing measured before. The pick, the ends and the knee of the frontier and
known strategies train in turn. Unlike in step_time.py a module is the only one of its process, as
in a job, and not one of a dozen, and steps follow each other.
Predictions are those before plans were run, and those by the costs that the run ones corrected.
Writes its entries of benchmarks/results/predictions.json, and the table of docs/step-times.md.
"""

from __future__ import annotations

import gc
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from benchmarks.links import run_on_links
from benchmarks.models.small import LARGE, MODELS, STUDY
from benchmarks.ranks import WORKER, mean_time
from benchmarks.step_time import (
    compared_plans,
    ours,
    planned,
    predicted_s,
    program_of,
    step_of,
)
from benchmarks.step_time_page import fill_page
from tensoropt_torch.plan import Plan

RESULTS = Path(__file__).parent / "results" / "predictions.json"
TURNS, WARM_UPS = 5, 2
STEPS, MOST_STEPS, TURN_S = 3, 12, 1.0  # the more the shorter they are


def time_alone(name: str, plan: Plan) -> float:
    """Seconds of a step on the slowest rank of a module that is made for it, one step after the
    other, as in training."""
    gc.collect()  # the one before: modules hold themselves
    step = step_of(partial(ours, plan, name))
    step()
    about_s = mean_time(step, WARM_UPS)
    return mean_time(step, max(STEPS, min(round(TURN_S / about_s), MOST_STEPS)))


def measure(name: str) -> dict[str, Any]:
    """By plan, those that run the same under the label of the first: what was predicted, and what
    steps took; and how much slower than the fastest of them it was."""
    pick, task, _ = planned(name)
    plans = compared_plans(pick, task)
    predicted = plans["ours, predicted to be fastest"]
    first: dict[str, tuple[str, Plan]] = {}
    for label, plan in plans.items():
        first.setdefault(program_of(plan), (label, plan))
    different = dict(first.values())
    turns = [
        {label: time_alone(name, plan) for label, plan in different.items()} for _ in range(TURNS)
    ]
    rows = {}
    for label, plan in different.items():
        steps_s = [turn[label] for turn in turns]
        rows[label] = {
            "step_s": statistics.median(steps_s),
            "steps_s": steps_s,
            "predicted_s": predicted_s(plan, predicted),
            "corrected_s": predicted_s(plan, pick),
            "raced_s": plan.measured_s,
        }
    fastest = min(row["step_s"] for row in rows.values())
    for row in rows.values():
        row["to_fastest"] = row["step_s"] / fastest
    return rows


def format_row(row: dict[str, Any]) -> str:
    """What a step takes, and how far predictions are off."""
    step_s = row["step_s"]
    return (
        f"{step_s:.3f} s, predicted {row['predicted_s'] / step_s - 1:+.0%}, "
        f"by corrected costs {row['corrected_s'] / step_s - 1:+.0%}; "
        f"{row['to_fastest']:.2f} of the fastest"
    )


if __name__ == "__main__":
    names = [*MODELS, *STUDY]
    run_on_links(__file__, __doc__, measure, names, RESULTS, format_row, list(LARGE))
    if WORKER not in sys.argv:
        fill_page()
