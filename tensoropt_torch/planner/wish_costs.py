"""What a user's wishes cost: the frontier with them, without each of them, and without any."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tensoropt_torch import _C
from tensoropt_torch.checks import check_memory_limit
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import Plan, Wish
from tensoropt_torch.planner.memory_limits import default_memory_limit
from tensoropt_torch.planner.points import pick_index
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.space.allowed import allowed_configs
from tensoropt_torch.space.planners import make_planner
from tensoropt_torch.telling.description import model_at_hand
from tensoropt_torch.units import format_bytes, format_seconds

# Of more wishes none is left out alone, so that not too many searches are made.
MOST_SINGLE = 8


@dataclass(frozen=True)
class WishedEnds:
    """What strategies with some of the wishes come to.

    Attributes:
        without: the wishes that are left out.
        least_memory_bytes: per device.
        least_time_s: of a step, whatever the memory.
        time_s: of the fastest within the memory limit; None: none is.
    """

    without: tuple[Wish, ...]
    least_memory_bytes: float
    least_time_s: float
    time_s: float | None


@dataclass(frozen=True)
class WishCosts:
    """The costs of wishes. Times are within the error of the search, by default 1 %.

    Attributes:
        memory_limit: in bytes per device.
        rows: with all wishes, without one at a time, without any.
        seconds: that the searches took.
    """

    memory_limit: float
    rows: tuple[WishedEnds, ...]
    seconds: float

    @property
    def wished(self) -> WishedEnds:
        """With all wishes."""
        return self.rows[0]

    @property
    def free(self) -> WishedEnds:
        """Without any."""
        return self.rows[-1]

    def __repr__(self) -> str:
        (wished, free) = self.wished, self.free
        return (
            f"WishCosts({len(free.without)} wishes: a step takes at least "
            f"{format_seconds(wished.least_time_s)} instead of {format_seconds(free.least_time_s)},"
            f" and {format_bytes(wished.least_memory_bytes)} per device instead of "
            f"{format_bytes(free.least_memory_bytes)})"
        )


def wish_costs(
    plan: Plan, memory_limit: float | None = None, search: SearchSettings | None = None
) -> WishCosts:
    """What the wishes of a plan cost, by a search with all of them, one without each if they
    are few, and one without any; each takes as long as planning does.

    Args:
        plan: with its model.
        memory_limit: in bytes per device; by default 90 % of the device's memory.
        search: by default as for planning.

    Raises:
        TensorOptError: the plan has no wishes, or no model at hand.
    """
    check_memory_limit(memory_limit)
    if not plan.settings.wishes:
        raise TensorOptError("the plan has no wishes; give pin=... or forbid=... where it is made")
    start = time.perf_counter()
    device = parse_cluster(plan.settings.cluster, "the plan").device
    usual = default_memory_limit(device.memory_bytes)
    limit = usual if memory_limit is None else memory_limit
    captured = model_at_hand(plan)
    settings = replace(plan.settings, wishes=())
    planner = make_planner(captured, settings)
    rows = []
    for wishes in _parts(plan.settings.wishes):
        masks = allowed_configs(planner, captured, settings, wishes)
        pick_limits = [limit] if math.isfinite(limit) else []
        result = (search or SearchSettings()).run(planner, allowed=masks, pick_limits=pick_limits)
        without = tuple(wish for wish in plan.settings.wishes if wish not in wishes)
        rows.append(_ends(result, without, limit))
    return WishCosts(limit, tuple(rows), time.perf_counter() - start)


def _parts(wishes: tuple[Wish, ...]) -> Iterator[Sequence[Wish]]:
    """All wishes, all but one, none."""
    yield wishes
    if 1 < len(wishes) <= MOST_SINGLE:
        for index in range(len(wishes)):
            yield wishes[:index] + wishes[index + 1 :]
    yield ()


def _ends(result: _C.SearchResult, without: tuple[Wish, ...], limit: float) -> WishedEnds:
    points = result.points
    fitting = pick_index(points, limit)
    return WishedEnds(
        without,
        float(result.min_memory),
        points[-1][1],
        None if fitting is None else points[fitting][1],
    )
