"""Random strategies of random models against one process, for as long as there is time.

    make soak SECONDS=3600               # python -m tests.distributed.soak --seconds 3600

Each round is a model of the zoo, with inputs whole or shared out, with or without recomputation
and micro-batches, and some random strategies; rounds in turn are run by the same processes. Loss,
gradients, parameters and buffers of a step of AdamW, and the loss after it, are those of one
process, each rank's part of them. Says the seed of each round, and adds up what was run in
benchmarks/results/soak.json: another run goes on with the seeds after those, unless ``--seed`` says
others. Ends with 1 at a mismatch.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

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
from tensoropt_torch.values.parts import parts_of
from tests.distributed.harness import RankError, run_ranks
from tests.distributed.models import SHALLOW, Case, make
from tests.distributed.parity import BUCKETS, TOLERANCE, labels, optimizer_of, share
from tests.distributed.scales import Moved, apart, moved

HERE = "tests.distributed.soak"
RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "soak.json"
PRELOADED = ("tests.distributed.parity",)  # less than tests need, which takes long to import
STRATEGIES = 100  # of a round, at most
FEWER = {"tables": 20, "transformer": 40, "llama": 60, "resnet": 60, "fused_otherwise": 60}
ROUNDS = 10  # of the same processes, at most
DTYPE = torch.float64
OWN_TOLERANCE = {"mixed": 1e-4, "odd_fused": 1e-4}  # that compute in float32 somewhere
START_S = 120.0  # what processes may take besides
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Round:
    """What is run, all of it from the seed."""

    seed: int
    model: str
    inputs: str
    recompute: bool
    micro_batches: int
    strategies: int

    @staticmethod
    def of(seed: int, strategies: int) -> Round:
        rng = random.Random(seed)
        model, inputs = rng.choice(sorted(SHALLOW)), rng.choice(["replicated", "sharded"])
        recompute, micro_batches = rng.random() < 0.4, rng.choice([1, 1, 2])
        strategies = min(strategies, FEWER.get(model, STRATEGIES))
        return Round(seed, model, inputs, recompute, micro_batches, strategies)

    @property
    def tolerance(self) -> float:
        return OWN_TOLERANCE.get(self.model, TOLERANCE[DTYPE])


@dataclass
class Outcome:
    """Of a round: how many strategies were run, what was wrong, and why none was."""

    count: int = 0
    wrong: tuple[str, ...] = ()
    refused: str = ""


def ranks_of(seed: int) -> int:
    """How many processes run the rounds from this seed on."""
    return random.Random(-seed - 1).choice([2, 2, 2, 3, 4])


def plans(own: Round, case: Case) -> Iterator[tuple[int, Plan]]:
    """By their seeds."""
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
    for seed in range(own.seed * STRATEGIES, own.seed * STRATEGIES + own.strategies):
        chosen = replace(settings, overlap=seed % 2 == 0, bucket_bytes=BUCKETS[seed % len(BUCKETS)])
        yield seed, Plan.of(space, chosen, captured, space.random_strategy(seed, seed % 5 / 5))


def stepped(model: nn.Module, loss_of: Any) -> Tensors:
    """What a step leaves, by name, and the loss after it."""
    optimizer = optimizer_of(model)
    loss = loss_of(model)
    loss.backward()
    found = {"loss": loss.detach()}
    found |= {f"buffer '{name}'": buffer.detach().clone() for name, buffer in model.named_buffers()}
    gradients = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    found |= {f"gradient of '{name}'": gradient.detach() for name, gradient in gradients}
    optimizer.step()
    found |= {f"parameter '{name}'": p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        found["loss after it"] = loss_of(model)
    return found


def alone(own: Round, case: Case) -> Moved:
    """What one process computes, and how far rounding moves it."""
    return moved(
        lambda model: stepped(model, lambda m: replace(case, model=m).loss()),
        case.model,
        own.tolerance,
    )


def differing(got: Tensors, one: Moved) -> Iterator[str]:
    """In this rank's parts."""
    if got.keys() != one.values.keys():
        yield f"only one has {sorted(got.keys() ^ one.values.keys())}"
        return
    for name, value in one.values.items():
        allowed = one.allowed(name)
        for own, part in _parts(got[name], value):
            error = apart(own, part)
            if not error <= allowed:
                yield f"{name} is off by {error:.3g}, where {allowed:.3g} is allowed"


def _parts(own: torch.Tensor, whole: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What this rank has of a tensor, beside what it should have."""
    if not isinstance(own, DTensor):
        yield own, whole
        return
    if any(placement.is_partial() for placement in own.placements):
        yield own.full_tensor(), whole
        return
    local = own.to_local()
    places = parts_of(whole.shape, own.device_mesh, own.placements)
    expected = [whole[place] for place in places]
    if len(expected) == 1:
        yield local, expected[0]
        return
    (dim,) = {p.dim for p in own.placements if hasattr(p, "split_factor")}
    yield local, torch.cat(expected, dim)


def check(given: tuple[Sequence[Round], float]) -> list[Outcome]:
    """On every rank: the rounds one after the other, until the seconds are over."""
    rounds, seconds = given
    end_s = time.monotonic() + seconds
    outcomes: list[Outcome] = []
    for own in rounds:
        if from_first_rank(lambda: time.monotonic() > end_s):
            break
        outcomes.append(_check_round(own, end_s))
    return outcomes


def _check_round(own: Round, end_s: float) -> Outcome:
    print(f"{own} on {dist.get_world_size()} processes", flush=True)
    case, device = make(own.model, DTYPE, cases=SHALLOW), torch.device("cpu")
    found = plans(own, case)
    try:
        seed, plan = next(found)
    except TensorOptError as error:  # micro-batches, or shares, of what has none
        return Outcome(refused=str(error))
    one = alone(own, case)
    inputs = share((*case.args, *case.targets), own.inputs)
    context: RankContext | None = None
    outcome, late = Outcome(), False
    while not late:
        print(f"strategy {seed}", flush=True)  # before what may end the process
        context = context or RankContext.make([s for s, _ in plan.settings.mesh_axes], device)
        assert plan.captured is not None
        module = parallelize(case.model, plan.captured, plan, device, context)
        wrong = list(differing(stepped(module, lambda m: m(*inputs)), one))
        if wrong:
            outcome.wrong += (f"strategy {seed}: {wrong} under {labels(plan, own.model)}",)
        outcome.count += 1
        following = next(found, None)
        if following is None:
            break
        seed, plan = following
        late = from_first_rank(lambda: time.monotonic() > end_s)
    return outcome


def run(rounds: Sequence[Round], ranks: int, seconds: float) -> list[Outcome]:
    """As ``check``; what a rank raises is wrong as well."""
    try:
        of_ranks = run_ranks(
            ranks, f"{HERE}:check", (rounds, seconds), seconds + START_S, preloaded=PRELOADED
        )
    except RankError as error:
        if len(rounds) == 1:
            return [Outcome(wrong=(str(error),))]
        alone = seconds / len(rounds)  # which of them it was, and what the others do
        return [outcome for own in rounds for outcome in run([own], ranks, alone)]
    return [
        replace(outcomes[0], wrong=tuple(text for outcome in outcomes for text in outcome.wrong))
        for outcomes in zip(*of_ranks, strict=True)
    ]


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--count", type=int, default=10000, help="strategies, at most")
    parser.add_argument("--seed", type=int, help="of the first round")
    given = parser.parse_args()
    record: dict[str, Any] = {"rows": []}
    if RESULT.exists():
        record = json.loads(RESULT.read_text())
    begin = 1 + max((row["seeds"][1] for row in record["rows"]), default=0)
    end_s, wrong = time.monotonic() + given.seconds, list[str]()
    seed = begin if given.seed is None else given.seed
    row: dict[str, Any] = {"seeds": [seed, seed - 1], "strategies": 0, "mismatches": 0}
    models, processes = Counter[str](), Counter[str]()
    while row["strategies"] < given.count and (left := end_s - time.monotonic()) > 0:
        ranks, most = ranks_of(seed), given.count - row["strategies"]
        count = min(ROUNDS, math.ceil(most / STRATEGIES))
        rounds = [Round.of(s, min(STRATEGIES, most)) for s in range(seed, seed + count)]
        for own, outcome in zip(rounds, run(rounds, ranks, left), strict=False):
            found = len(outcome.wrong)
            print(f"{own} on {ranks}: {outcome.count} strategies, {found} wrong {outcome.refused}")
            print(*outcome.wrong, sep="\n", end="", flush=True)
            row["strategies"] += outcome.count
            models[own.model] += outcome.count
            processes[str(ranks)] += outcome.count
            wrong += [f"round {own.seed}: {text}" for text in outcome.wrong]
            seed = own.seed + 1
    row |= {"seeds": [row["seeds"][0], seed - 1], "mismatches": len(wrong)}
    row |= {"models": dict(sorted(models.items())), "processes": dict(sorted(processes.items()))}
    rows = [*record["rows"], row]
    sums = {name: sum(r[name] for r in rows) for name in ("strategies", "mismatches")}
    RESULT.write_text(json.dumps({**sums, "rows": rows}, indent=1) + "\n")
    print(f"{row['strategies']} strategies, {len(wrong)} mismatches", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
