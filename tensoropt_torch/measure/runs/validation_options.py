"""Which random strategies a job runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class ValidationOptions:
    """What to run.

    Attributes:
        strategies: how many random ones.
        seed: of the first; others follow.
        steps: measured steps of each run.
        passes: how often each is run. All of them are run once, then all again; the run
            with the shortest step counts. Those that were run while something else
            slowed the machine are run up to as often again.
        budget_s: seconds for all of it; None: no limit. What was run until then counts.
        optimizer: makes the optimizer of a module that is run; by default the one
            planned for, whose memory is simulated in any case.
        simulate: peaks of memory are simulated as well, next to the sums of the search.
        fresh: run again what an earlier job has run, which otherwise counts as run. What
            is run with an ``optimizer`` given here is not kept.
    """

    strategies: int = 20
    seed: int = 0
    steps: int = 5
    passes: int = 2
    budget_s: float | None = 60.0
    optimizer: MakeOptimizer | None = None
    simulate: bool = True
    fresh: bool = False
