"""Strategies for another graph of a model whose parameters are stored already."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Plan, VariantStrategy
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.memory_limits import default_memory_limit
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.searched import Searched
from tensoropt_torch.space.search_space import make_space


def find_pinned(
    plan: Plan, captured: CapturedModel, storage: Mapping[str, str], *, gathered: bool = False
) -> VariantStrategy:
    """The strategy of ``captured``, with parameters stored as in ``storage``: the fastest
    that needs no more memory than the plan, else than a device usually may use, else the
    one that needs the least. With ``gathered`` every rank gets the whole batch."""
    settings = plan.settings.of_variant(gathered, captured.micro_batches)
    device_bytes = float(plan.settings.cluster["device"]["memory_bytes"])
    limits = (plan.memory_bytes, default_memory_limit(device_bytes), math.inf)
    space = make_space(captured, settings, storage)
    result = SearchSettings().run(space, pick_limits=limits[:2])
    frontier = Frontier([Searched(result, space, settings, captured)], 0.0)
    limit = next(limit for limit in limits if limit >= frontier.smallest.memory_bytes)
    point = frontier.smallest if math.isinf(limit) else frontier.at(limit)
    return VariantStrategy.of(space, captured, result.unroll(point.index), gathered)
