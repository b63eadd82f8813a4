"""Random pipelines beside one process: of models, cuts at any calls, numbers of stages and of
micro-batches, schedules, strategies that differ by stage, and recomputation.

A pipeline is drawn from its seed, so that each rank, and one process, draws the same.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import (
    Example,
    Plan,
    PlanningOptions,
    StagedPlan,
    TensorOptError,
    parallelize,
)
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.plan import Settings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.agreement import from_first_rank, gather
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.staging import StageOptions, plan_stages
from tensoropt_torch.tasks import captured_task
from tests.distributed.models import Case
from tests.distributed.staged import Pipeline, differences, trained
from tests.stages.models import OWN, make

# They draw random numbers, so that one process is one of this package, in as many micro-batches;
# and parts of values draw others than the whole, so that each stage has one device.
DRAWING = ("drops", "translator")
# Weights before the norm of a batch have no gradient but rounding, which Adam takes for one.
NORMALISED = ("normalised", "vgg", "resnet", "mixture", "odd_channels")
FIXED = ("recommender", "tables")  # in the number of rows
WHOLE = (*NORMALISED, "experts")  # not in micro-batches
SMALL = ("drops", "mlp", "mixed", "shares")  # of too few layers for many parts
KNOWN = (
    *("gpt", "gpt_tied", "llama", "odd_257_tied", "odd_channels", "mixed", "lstm", "gru"),
    *("transformer", "mlp", "vgg", "resnet", "mixture", "fused", "fused_otherwise", "grouped"),
    *("recommender", "experts", "sorted_experts", "routed_experts", "tables"),
)
CUT_ATTEMPTS = 20
Known = Mapping[int, Mapping[str, np.ndarray[Any, Any]]]  # results, by seed


@dataclass(frozen=True)
class Outcome:
    """Of one pipeline: ``refused`` says why there is none, ``errors`` what differs; there are so
    many different ``shares`` of the rows of a micro-batch."""

    seed: int
    pipeline: str
    refused: str = ""
    errors: tuple[str, ...] = ()
    shares: int = 1

    def __str__(self) -> str:
        return "\n  ".join([f"seed {self.seed}: {self.pipeline} {self.refused}", *self.errors])


def drawn(seed: int, world: int) -> tuple[Pipeline, random.Random]:
    """A pipeline without its cuts, and what these are drawn from."""
    chosen = random.Random(seed)
    model = chosen.choice([*sorted(OWN), *KNOWN])
    stages = world if model in DRAWING else chosen.choice([n for n in (2, 4) if world % n == 0])
    count = 1 if model in WHOLE else chosen.choice([1, 2, 3, 4, 4])
    schedule = chosen.choice(["1f1b", "gpipe", *["interleaved"] * (model not in SMALL)])
    chunks = chosen.choice([2, 2, 3]) if schedule == "interleaved" else 1
    options = {"micro_batches": count, "schedule": schedule, "chunks": chunks}
    optimizer = "sgd" if model in NORMALISED else chosen.choice(["sgd", "adamw"])
    rows = count * chosen.choice([1, 2, 3, 4]) if count > 1 else chosen.choice([4, 8, 3, 5, 7])
    pipeline = Pipeline(
        model,
        {**options, "stages": stages},
        optimizer,
        8 if model in FIXED else rows,
        clip=chosen.choice([None, 0.1]),
        seed=chosen.randrange(2**31),
        tolerance=1e-5 if model == "mixed" else None,
        keywords={"recompute": chosen.random() < 0.5},
    )
    return pipeline, chosen


def alone(given: tuple[Sequence[int], int]) -> Known:
    """What one process computes of the pipelines whose models draw numbers."""
    seeds, world = given
    found: dict[int, Mapping[str, np.ndarray[Any, Any]]] = {}
    for seed in seeds:
        pipeline, _ = drawn(seed, world)
        if pipeline.model not in DRAWING:
            continue
        case, task = _case_of(pipeline)
        try:
            captured = micro_batched(task.captured, pipeline.options["micro_batches"])
        except TensorOptError:
            continue  # the pipeline is refused as well
        task = replace(task, captured=captured)
        settings = task.settings(1)
        space = make_space(captured, settings)
        plan = Plan.of(space, settings, captured, space.random_strategy(0))
        torch.manual_seed(pipeline.seed or 0)
        parallel = parallelize(case.model, plan, case.args, **case.keywords)
        results = _results(pipeline, parallel, without_model(case))
        found[seed] = {name: tensor.numpy() for name, tensor in results.items()}
    return found


def without_model(case: Case) -> Case:
    """The case without its model, beside a module that is parallel."""
    return Case(torch.nn.Identity(), case.args, case.loss_fn, case.targets)


def compare_drawn(given: tuple[Sequence[int], Known]) -> list[Outcome]:
    """The pipelines of these seeds beside one process, of which some results are given."""
    seeds, known = given
    found = []
    for seed in seeds:
        try:
            found.append(_compared(seed, known.get(seed)))
        except Exception as error:
            pipeline, _ = drawn(seed, dist.get_world_size())
            raise AssertionError(f"seed {seed}: {pipeline}") from error
    return found


def _compared(seed: int, known: Mapping[str, np.ndarray[Any, Any]] | None) -> Outcome:
    pipeline, chosen = drawn(seed, dist.get_world_size())
    case, task = _case_of(pipeline)
    one = copy.deepcopy(case)
    plan, reasons = _planned(pipeline, task, chosen)
    if plan is None:
        return Outcome(seed, str(pipeline), "; ".join(sorted(set(reasons))))
    text = f"{pipeline} cut at {plan.cuts}"
    torch.manual_seed(pipeline.seed or 0)
    parallel = parallelize(case.model, plan, case.args, **case.keywords)
    got = gather(_results(pipeline, parallel, without_model(case)))
    if known is None:
        expected = _results(pipeline, one.model, one)
    else:
        expected = {name: torch.from_numpy(values) for name, values in known.items()}
    tolerance = pipeline.tolerance or 1e-8
    wrong = tuple(differences(got, expected, tolerance))
    return Outcome(seed, text, errors=wrong, shares=plan.parts[0].plan.settings.num_shares)


def _results(pipeline: Pipeline, module: nn.Module, case: Case) -> dict[str, torch.Tensor]:
    """Of training, and then of evaluation, also of the first row alone where there may be one, or
    of two where these have statistics."""
    found = trained(pipeline, module, case)
    module.eval()
    of_batch = len(case.args[0])
    first = 2 if pipeline.model in NORMALISED else 1
    for rows in (of_batch, *([first] * (pipeline.model not in FIXED))):
        args, targets = (
            [t[:rows] if len(t) == of_batch else t for t in tensors]
            for tensors in (case.args, case.targets)
        )
        with torch.no_grad():
            if module is not case.model or case.loss_fn is None:
                loss = module(*args, *targets)
            else:
                loss = case.loss_fn(module(*args), *targets)
        found[f"evaluation of {rows}"] = loss.clone()
    return found


def _case_of(pipeline: Pipeline) -> tuple[Case, PlanningTask]:
    case = make(pipeline.model, pipeline.dtype, pipeline.rows)
    options = PlanningOptions(**pipeline.keywords)
    return case, captured_task(Example(case.model, case.args, **case.keywords), options)


def _planned(
    pipeline: Pipeline, task: PlanningTask, chosen: random.Random
) -> tuple[StagedPlan | None, list[str]]:
    """With the first cuts of some that are drawn that can be; or why there are none."""
    options = dict(pipeline.options)
    stages, chunks = options.pop("stages"), options["chunks"]
    seeds = itertools.count(pipeline.seed or 0)

    def find(space: Any, settings: Settings, part: CapturedModel, held: float) -> Plan:
        return Plan.of(space, settings, part, space.random_strategy(next(seeds)))

    reasons = []
    try:
        captured = micro_batched(task.captured, options["micro_batches"])
    except TensorOptError as error:
        return None, [str(error)]
    for _ in range(CUT_ATTEMPTS):
        cuts = _cuts(captured, stages * chunks, chosen)
        if not cuts:
            return None, ["too few calls take parameters"]
        try:
            split = StageOptions(cuts, **options)
            plan = plan_stages(task, split, dist.get_world_size(), find=find)
        except TensorOptError as error:
            reasons.append(str(error))
            continue
        return replace(from_first_rank(lambda: plan), captured=task.captured), []  # noqa: B023
    return None, reasons


def _cuts(captured: CapturedModel, parts: int, chosen: random.Random) -> tuple[int, ...]:
    """Such that each part has calls that take parameters; none if there are too few."""
    nodes = captured.graph_module.graph.nodes
    calls = [node for node in nodes if node.op == "call_function"]
    parameters = {source.placeholder for source in captured.parameters}
    takes = [n for n, call in enumerate(calls) if not parameters.isdisjoint(call.all_input_nodes)]
    if len(takes) < parts:
        return ()
    places = sorted(chosen.sample(range(1, len(takes)), parts - 1))
    return tuple(chosen.randint(takes[place - 1] + 1, takes[place]) for place in places)
