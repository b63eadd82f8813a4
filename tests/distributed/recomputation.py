"""Plans that recompute, on one process: the bits of one that does not, and what runs again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tensoropt_torch import _C
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.local_calls import operator_named
from tensoropt_torch.runtime import recomputation
from tensoropt_torch.runtime.random import call_seeded
from tensoropt_torch.space.search_space import make_space
from tests.distributed.models import Case, make
from tests.distributed.parity import STEPS, Trace, train

RANDOM_STRATEGIES = 4
POINTS = 5


@dataclass
class Run:
    """What a plan did."""

    plan: str
    trace: Trace
    memory_bytes: float
    expected: Counter[str]  # operators of the plan that run again, in all steps, by target
    calls: Counter[str]


def makes_views(target: Any) -> bool:
    """Of what is kept nothing is made again."""
    return any(result.alias_info is not None for result in target._schema.returns)


def expected_calls(plan: Plan) -> Counter[str]:
    """What the plan says."""
    assert plan.captured is not None
    rows = make_space(plan.captured, plan.settings).nodes()
    again = [
        row.target
        for row, label in zip(rows, plan.choices.labels, strict=True)
        if row.target != "relay" and row.saved[row.configs.index(label)] == _C.Saved.REMADE
    ]
    return Counter(again * STEPS)


def trained(name: str, case: Case, plan: Plan, context: RankContext) -> Run:
    """Some steps of it; each call once more in each of them."""
    calls: Counter[str] = Counter()
    run_again = recomputation._Call.run_again

    def counting(self: Any, made: Any) -> list[torch.Tensor]:
        seeded = self._function is call_seeded
        target = self._operands[0] if seeded else self._function
        calls[str(target)] += 1
        return run_again(self, made)

    assert plan.captured is not None
    module = parallelize(case.model, plan.captured, plan, context.device, context)
    programs_of(module).base.boxed = None  # what is recorded calls no Python again
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recomputation._Call, "run_again", counting)
        trace = train(module, lambda: module(*case.args, *case.targets))
    expected = expected_calls(plan)
    for target in list(expected):
        if makes_views(operator_named(target)):
            del expected[target], calls[target]
    return Run(name, trace, plan.memory_bytes, expected, calls)


def runs(model: str) -> list[Run]:
    """The first is of the plan without recomputation."""
    case = make(model, torch.float32)
    captured = capture(case.model, case.args, **case.keywords)
    context = RankContext.make([], torch.device("cpu"))
    cluster = load_cluster("cpu")
    plain = find_frontier(PlanningTask(captured, cluster), 1)
    found = [trained("plain", case, plain.fastest.plan, context)]
    task = PlanningTask(captured, cluster, recompute=True, search=SearchSettings(epsilon=1e-3))
    for point in find_frontier(task, 1).thinned(POINTS):
        found.append(trained(f"point {point.index}", case, point.plan, context))
    settings = task.settings(1)
    space = make_space(captured, settings)
    for seed in range(RANDOM_STRATEGIES):
        plan = Plan.of(space, settings, captured, space.random_strategy(seed))
        found.append(trained(f"random, seed {seed}", case, plan, context))
    return found
