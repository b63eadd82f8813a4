"""Random strategies of random models against one process, for as long as there is time.

    make soak SECONDS=3600 SEED=1        # python -m tests.distributed.soak --seconds 3600 --seed 1

Each round is a model of the zoo on 2, 3 or 4 processes, with inputs whole or shared out, with or
without recomputation and micro-batches, and some random strategies: losses, gradients,
parameters and buffers of three steps are those of one process. Says the seed of each round, and
adds up rounds in benchmarks/results/soak.json. Ends with 1 at a mismatch.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import load_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.parallelize import parallelize
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.agreement import from_first_rank
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import RankError, run_ranks
from tests.distributed.models import CASES, make
from tests.distributed.parity import (
    BUCKETS,
    TOLERANCE,
    differences,
    labels,
    share,
    train,
    train_alone,
)

HERE = "tests.distributed.soak"
RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "soak.json"
STRATEGIES = 25  # of a round
DTYPE = torch.float64
ROUND_S = 400.0


@dataclass(frozen=True)
class Round:
    """What is run, all of it from the seed."""

    seed: int
    model: str
    ranks: int
    inputs: str
    recompute: bool
    micro_batches: int
    seconds: float

    @staticmethod
    def of(seed: int, seconds: float) -> Round:
        rng = random.Random(seed)
        model, ranks = rng.choice(sorted(CASES)), rng.choice([2, 3, 4])
        inputs = rng.choice(["replicated", "sharded"]) if ranks != 3 else "replicated"
        return Round(seed, model, ranks, inputs, rng.random() < 0.4, rng.choice([1, 1, 2]), seconds)


def plans(own: Round) -> Iterator[tuple[int, Plan]]:
    """By their seeds."""
    case = make(own.model, DTYPE)
    captured = capture(case.model, case.args, **case.keywords)
    task = PlanningTask(
        captured,
        load_cluster("cpu"),
        inputs=own.inputs,  # type: ignore[arg-type]
        recompute=own.recompute,
    )
    if own.micro_batches > 1:
        task = replace(task, in_micro_batches=(micro_batched(captured, own.micro_batches),))
    *_, (captured, settings) = task.graphs(dist.get_world_size())
    space = make_space(captured, settings)
    for seed in range(own.seed * STRATEGIES, (own.seed + 1) * STRATEGIES):
        chosen = replace(settings, overlap=seed % 2 == 0, bucket_bytes=BUCKETS[seed % len(BUCKETS)])
        yield seed, Plan.of(space, chosen, captured, space.random_strategy(seed, seed % 5 / 5))


def check(own: Round) -> tuple[int, list[str], str]:
    """On every rank: how many strategies were run, what was wrong, and why none was."""
    case, count, wrong = make(own.model, DTYPE), 0, list[str]()
    end_s = time.monotonic() + own.seconds
    expected = train_alone(case.model, lambda m: replace(case, model=m).loss(), TOLERANCE[DTYPE])
    context: RankContext | None = None
    try:
        made = list(plans(own))
    except TensorOptError as error:  # micro-batches, or shares, of what has none
        return 0, [], str(error)
    for seed, plan in made:
        if from_first_rank(lambda: time.monotonic() > end_s):
            break
        sizes = [size for size, _ in plan.settings.mesh_axes]
        context = context or RankContext.make(sizes, torch.device("cpu"))
        assert plan.captured is not None
        module = parallelize(case.model, plan.captured, plan, torch.device("cpu"), context)
        inputs = share((*case.args, *case.targets), own.inputs)
        got = train(module, lambda module=module, inputs=inputs: module(*inputs))
        found = list(differences(got, expected, TOLERANCE[DTYPE]))
        if found:
            wrong.append(f"strategy {seed}: {found} under {labels(plan, own.model)}")
        count += 1
    return count, wrong, ""


def run(own: Round) -> tuple[int, list[str], str]:
    """As ``check``; what a rank raises is wrong as well."""
    try:
        results = run_ranks(own.ranks, f"{HERE}:check", own, own.seconds + 200)
    except RankError as error:
        return 0, [str(error)], ""
    count, _, refused = results[0]
    return count, [text for result in results for text in result[1]], refused


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--count", type=int, default=10000, help="strategies, at most")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    given = parser.parse_args()
    end_s, seed, total, wrong = time.monotonic() + given.seconds, given.seed, 0, list[str]()
    models: dict[str, int] = {}
    while total < given.count and (left := end_s - time.monotonic()) > 0:
        own = Round.of(seed, min(left, ROUND_S))
        count, found, refused = run(own)
        print(f"{own}: {count} strategies, {len(found)} wrong {refused}", *found, flush=True)
        total, seed = total + count, seed + 1
        models[own.model] = models.get(own.model, 0) + count
        wrong += [f"round {own.seed}: {text}" for text in found]
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {"rounds": []}
    row = {"seeds": [given.seed, seed - 1], "strategies": total, "mismatches": len(wrong)}
    rounds = [*before["rounds"], {**row, "models": models}]
    sums = {name: sum(r[name] for r in rounds) for name in ("strategies", "mismatches")}
    RESULT.write_text(json.dumps({**sums, "rounds": rounds}, indent=1) + "\n")
    print(f"{total} strategies of {len(models)} models, {len(wrong)} mismatches", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
