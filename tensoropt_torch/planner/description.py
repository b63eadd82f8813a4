"""What a plan does with every operator, parameter and value, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.space import make_planner


@dataclass(frozen=True)
class Choice:
    """An operator or a parameter (``operator`` is ``parameter``) that could have been split
    otherwise, and the config that it has."""

    node: str
    operator: str
    config: str


@dataclass(frozen=True)
class PlanDescription:
    """A plan in words.

    Attributes:
        sizes: of the mesh axes, outermost first.
        choices: in execution order.
        num_edges: how many values go to a consumer.
        num_resharded: how many of them, or of their gradients, change their layout.
        kept: how often each kind of tensor reuse occurs among those.
    """

    sizes: tuple[int, ...]
    choices: tuple[Choice, ...]
    num_edges: int
    num_resharded: int
    kept: Mapping[str, int]


def describe(plan: Plan) -> PlanDescription:
    """Makes the strategy space of the plan once.

    Raises:
        TensorOptError: the plan was loaded without its model.
    """
    if plan.captured is None:
        raise TensorOptError(
            "the plan has no model at hand; give it the captured one with plan.with_model()"
        )
    planner = make_planner(plan.captured, plan.settings)
    choices = tuple(
        Choice(row["name"], row["target"] or "parameter", row["configs"][config])
        for row, config in zip(planner.describe_nodes(), plan.config, strict=True)
        if len(row["configs"]) > 1 and row["target"] != "relay"
    )
    edges = planner.describe_edges(plan.strategy())
    moved = [e for e in edges if e["from"] != e["to"] or e["gradient_from"] != e["gradient_to"]]
    kept = Counter(e["reuse"] for e in moved if e["reuse"] != "none")
    sizes = tuple(size for size, _ in plan.settings.mesh_axes)
    return PlanDescription(sizes, choices, len(edges), len(moved), dict(sorted(kept.items())))
