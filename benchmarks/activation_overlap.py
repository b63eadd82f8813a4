"""What reshards of activations could gain if they ran while a device computes.

    python benchmarks/activation_overlap.py

Collectives of activations are waited for where they are. One whose value is made right before,
and whose result is used right after it, has nothing to run beside; one with other operators in
between, as on a residual branch, could run beside these. For models of benchmarks/odd_sizes.py on
8 H100, the ends and the knee of the frontier and the smallest point of tensor parallelism alone,
this is a bound of the share of a step that would be gained: for each reshard its predicted
seconds, or those that all operators in between take forward and backward, where these are fewer;
operators that lie between several count for each of them. Writes
benchmarks/results/activation_overlap.json.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.odd_sizes import MODELS
from tensoropt_torch import Plan, load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.telling.collectives import waited_for
from tensoropt_torch.telling.description import space_of

RESULT = Path(__file__).parent / "results" / "activation_overlap.json"
CLUSTER, DEVICES = "h100-8", 8
ALONE = "Megatron"


def could_overlap(plan: Plan) -> dict[str, float]:
    """Seconds of a step, of its reshards of activations, and at most so many that others hide."""
    space = space_of(plan)
    places = [row.graph_node for row in space.nodes()]  # in the order of calls
    estimates = space.estimates(plan.choices.strategy(space))
    seconds = sorted((places[row.node], row.time_s) for row in estimates)
    computing = [place for place, _ in seconds]
    until = [0.0, *accumulate(time_s for _, time_s in seconds)]
    users = defaultdict(list)
    edges = space.edges()
    made = list(places)
    for source, target in ((edge.value, edge.graph_node) for edge in edges):
        users[source].append(places[target])
        if places[target] < 0:  # a value in a layout for several consumers
            made[target] = places[source]
    reshards_s = hidden_s = 0.0
    for index, times_s in waited_for(space, plan).items():
        source, target = edges[index].value, edges[index].graph_node
        used = places[target] if places[target] >= 0 else min(users[target])
        between_s = until[bisect_left(computing, used)]
        between_s -= until[bisect_right(computing, made[source])] if made[source] >= 0 else 0.0
        reshards_s += sum(times_s)
        hidden_s += sum(min(time_s, max(0.0, between_s)) for time_s in times_s)
    return {"step_s": plan.time_s, "reshards_s": reshards_s, "hidden_s": hidden_s}


def measure(name: str) -> dict[str, dict[str, float]]:
    """By point."""
    with torch.device("meta"):
        model, inputs = MODELS[name]()
    task = PlanningTask(capture(model, (), inputs), load_cluster(CLUSTER))
    frontier = find_frontier(task, DEVICES)
    plans = {
        "smallest": frontier.smallest.plan,
        "knee": frontier.knee.plan,
        "fastest": frontier.fastest.plan,
    }
    (alone,) = find_baselines(task, DEVICES, (ALONE,))
    plans[f"{ALONE}, smallest"] = alone.plan(0)
    return {point: could_overlap(plan.with_model(task.captured)) for point, plan in plans.items()}


def main() -> None:
    found: dict[str, Any] = {}
    for name in MODELS:
        found[name] = measure(name)
        for point, row in found[name].items():
            step_s, reshards_s, hidden_s = row.values()
            print(
                f"{name}, {point}: {step_s * 1e3:.1f} ms a step, of it {reshards_s * 1e3:.2f} ms "
                f"of reshards of activations, at most {hidden_s / step_s:.1%} hidden"
            )
    RESULT.write_text(json.dumps({"cluster": CLUSTER, "points": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
