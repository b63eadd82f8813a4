"""What a user's constraints cost: the frontier with them, without each of them, and without any."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tensoropt_torch import _C
from tensoropt_torch.checks import check_memory_limit
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import Constraint, Plan
from tensoropt_torch.planner.memory_limits import default_memory_limit
from tensoropt_torch.planner.points import pick_index
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.space.allowed import allowed_configs
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.telling.description import model_at_hand
from tensoropt_torch.units import format_bytes, format_seconds

# Of more constraints none is left out alone, so that not too many searches are made.
MOST_SINGLE = 8


@dataclass(frozen=True)
class ConstrainedEnds:
    """What strategies with some of the constraints come to.

    Attributes:
        without: the constraints that are left out.
        least_memory_bytes: per device.
        least_time_s: of a step, whatever the memory.
        time_s: of the fastest within the memory limit; None: none is.
    """

    without: tuple[Constraint, ...]
    least_memory_bytes: float
    least_time_s: float
    time_s: float | None

    def sentence(self, constrained: ConstrainedEnds) -> str:
        """The gain in words, beside the ends with all constraints."""
        return (
            f"Without {' and '.join(map(str, self.without))} a step takes at least "
            f"{format_seconds(self.least_time_s)} instead of "
            f"{format_seconds(constrained.least_time_s)}, and a device needs at least "
            f"{format_bytes(self.least_memory_bytes)} instead of "
            f"{format_bytes(constrained.least_memory_bytes)}."
        )


@dataclass(frozen=True)
class ConstraintCosts:
    """The costs of constraints. Times are within the error of the search, by default 1 %.

    Attributes:
        memory_limit: in bytes per device.
        rows: with all constraints, without one at a time, without any.
        seconds: that the searches took.
    """

    memory_limit: float
    rows: tuple[ConstrainedEnds, ...]
    seconds: float

    @property
    def constrained(self) -> ConstrainedEnds:
        """With all constraints."""
        return self.rows[0]

    @property
    def free(self) -> ConstrainedEnds:
        """Without any."""
        return self.rows[-1]

    @property
    def sentences(self) -> list[str]:
        """What is gained without one of them, and without all."""
        return [row.sentence(self.constrained) for row in self.rows[1:]]

    def __repr__(self) -> str:
        own, free = self.constrained, self.free
        return (
            f"ConstraintCosts({len(free.without)} constraints: a step takes at least "
            f"{format_seconds(own.least_time_s)} instead of {format_seconds(free.least_time_s)},"
            f" and {format_bytes(own.least_memory_bytes)} per device instead of "
            f"{format_bytes(free.least_memory_bytes)})"
        )


def constraint_costs(
    plan: Plan, memory_limit: float | None = None, search: SearchSettings | None = None
) -> ConstraintCosts:
    """What the constraints of a plan cost, by a search with all of them, one without each if they
    are few, and one without any; each takes as long as planning does.

    Args:
        plan: with its model.
        memory_limit: in bytes per device; by default 90 % of the device's memory.
        search: by default as for planning.

    Raises:
        TensorOptError: the plan has no constraints, or no model at hand.
    """
    check_memory_limit(memory_limit)
    if not plan.settings.constraints:
        raise TensorOptError(
            "the plan has no constraints; give pin=... or forbid=... where it is made"
        )
    start = time.perf_counter()
    device = parse_cluster(plan.settings.cluster, "the plan").device
    usual = default_memory_limit(device.memory_bytes)
    limit = usual if memory_limit is None else memory_limit
    captured = model_at_hand(plan)
    settings = replace(plan.settings, constraints=())
    space = make_space(captured, settings)
    rows = []
    for constraints in _parts(plan.settings.constraints):
        masks = allowed_configs(space, captured, settings, constraints)
        pick_limits = [limit] if math.isfinite(limit) else []
        result = (search or SearchSettings()).run(space, allowed=masks, pick_limits=pick_limits)
        without = tuple(
            constraint for constraint in plan.settings.constraints if constraint not in constraints
        )
        rows.append(_ends(result, without, limit))
    return ConstraintCosts(limit, tuple(rows), time.perf_counter() - start)


def _parts(constraints: tuple[Constraint, ...]) -> Iterator[Sequence[Constraint]]:
    """All constraints, then all but one of them, then none."""
    yield constraints
    if 1 < len(constraints) <= MOST_SINGLE:
        for index in range(len(constraints)):
            yield constraints[:index] + constraints[index + 1 :]
    yield ()


def _ends(
    result: _C.SearchResult, without: tuple[Constraint, ...], limit: float
) -> ConstrainedEnds:
    points = result.points
    fitting = pick_index(points, limit)
    return ConstrainedEnds(
        without,
        float(result.min_memory),
        points[-1][1],
        None if fitting is None else points[fitting][1],
    )
