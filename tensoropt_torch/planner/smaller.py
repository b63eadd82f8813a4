"""The next smaller point of the frontier of a plan."""

from __future__ import annotations

from dataclasses import replace

from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.searched import Searched
from tensoropt_torch.space.search_space import make_space

# A point that needs a thousandth less helps nobody whose memory has run out.
LEAST_STEP = 0.05


class SmallerPlans:
    """The frontier of what the plans of one model were searched in, which is kept.

    ::

        smaller = SmallerPlans()
        plan = smaller(plan, captured)      # None: there is none
    """

    def __init__(self) -> None:
        self._frontiers: dict[str, Frontier] = {}

    def __call__(self, plan: Plan, captured: CapturedModel) -> Plan | None:
        """The fastest plan of those that are predicted to need at least ``LEAST_STEP`` less
        memory per device, else the one that needs the least, in as many micro-batches and under
        the same settings; None: no plan needs less. It has no model."""
        frontier = self._frontier(plan.with_model(captured))
        limit = (1 - LEAST_STEP) * plan.memory_bytes
        least = frontier.smallest
        if least.memory_bytes >= plan.memory_bytes:
            return None
        point = frontier.at(limit) if least.memory_bytes <= limit else least
        found = point.plan
        assert isinstance(found, Plan)
        return replace(found, captured=None)

    def _frontier(self, plan: Plan) -> Frontier:
        captured, settings = plan.captured, plan.settings
        assert captured is not None
        key = repr((captured.fingerprint, settings))
        if key not in self._frontiers:
            space = make_space(captured, settings)
            result = SearchSettings().run(space)
            searched = Searched(result, space, settings, captured)
            self._frontiers[key] = Frontier([searched], 0.0)
        return self._frontiers[key]
