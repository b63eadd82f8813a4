"""How to search: error bound, algorithm, threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.checks import check_number, check_whole
from tensoropt_torch.errors import TensorOptError


@dataclass(frozen=True)
class SearchSettings:
    """How to search: see ``csrc/search/frontier_tracking.h``.

    Attributes:
        epsilon: the relative error allowed on the frontier; 0: exact.
        algorithm: ``"ldp"``, or ``"elimination"``, the slower baseline of the
            paper (its sections 4.2 and 4.1).
        num_threads: 0 means all cores. The result does not depend on it.
        max_conditioning_work: pairs of points, as estimated, that exact
            elimination of hubs may cost; beyond, heuristics fix hubs.
        heuristics: each is tried and the results are united: ``"least_memory"``,
            ``"least_time"``, or the weight of memory in a weighted sum with time,
            from 0 to 1. By default both and a weight of a half.
        use_bounds: rule out with bounds what cannot improve on known strategies;
            without, every product is computed, as the paper does.
    """

    epsilon: float = 1e-2
    algorithm: str = "ldp"
    num_threads: int = 0
    max_conditioning_work: float = _C.DEFAULT_CONDITIONING_WORK
    heuristics: tuple[str | float, ...] = ()
    use_bounds: bool = True

    def run(
        self,
        space: _C.SearchSpace,
        memory_limit: float = math.inf,
        allowed: Sequence[Sequence[bool]] = (),
        pick_limits: Sequence[float] = (),
        others: Sequence[tuple[float, float]] = (),
        only_picks: bool = False,
    ) -> _C.SearchResult:
        """Search the strategies of ``space``; if ``allowed`` is given, only with
        the configs of each space node that it marks.

        Nothing above ``memory_limit`` bytes is asked for. Within it and within each
        of ``pick_limits`` (bytes) the fastest point is within ``epsilon`` of the
        fastest strategy. ``others`` are (bytes, seconds) of strategies that the result will be
        united with: what one of them stands for is not looked for. With ``only_picks`` nothing
        but the fastest points within the limits is promised.
        """
        options = self.options(memory_limit, pick_limits, others, only_picks)
        return space.search(options, allowed)

    def options(
        self,
        memory_limit: float = math.inf,
        pick_limits: Sequence[float] = (),
        others: Sequence[tuple[float, float]] = (),
        only_picks: bool = False,
    ) -> _C.SearchOptions:
        """What the core is asked for, as of ``run``.

        Raises:
            TensorOptError: a setting is not allowed.
        """
        self._check()
        return _C.SearchOptions(
            algorithm=self.algorithm,
            epsilon=self.epsilon,
            memory_limit=memory_limit,
            num_threads=self.num_threads,
            heuristics=[_memory_weight(heuristic) for heuristic in self.heuristics],
            max_conditioning_work=self.max_conditioning_work,
            use_bounds=self.use_bounds,
            pick_limits=list(pick_limits),
            only_picks=only_picks,
            others=list(others),
        )

    def _check(self) -> None:
        check_number("search.epsilon", self.epsilon, hint="; 0 is exact, 0.01 one per cent")
        check_whole("search.num_threads", self.num_threads, hint="; 0 means all cores")
        check_number("search.max_conditioning_work", self.max_conditioning_work)
        if isinstance(self.heuristics, str) or not isinstance(self.heuristics, Sequence):
            raise TensorOptError(
                f"search.heuristics = {self.heuristics!r} is not allowed: it must be a tuple, such "
                "as ('least_memory', 0.5)"
            )


def _memory_weight(heuristic: str | float) -> float:
    names = {"least_memory": 1.0, "least_time": 0.0}
    weight = names.get(heuristic) if isinstance(heuristic, str) else heuristic
    if not isinstance(weight, (int, float)) or not 0 <= weight <= 1:
        raise TensorOptError(
            f"heuristic {heuristic!r} is not known; give {', '.join(map(repr, names))}, or the "
            "weight of memory against time, a number from 0 to 1"
        )
    return float(weight)
