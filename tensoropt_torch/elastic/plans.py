"""The plan for as many processes as a job has, kept for each number of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch.distributed as dist

from tensoropt_torch.api import find_strategy
from tensoropt_torch.checks import check_counts, check_memory_limit
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.kept.files import is_written, read_or, write_atomically
from tensoropt_torch.plan import Plan, StagedPlan, any_of_json, load_any
from tensoropt_torch.runtime.agreement import agree_on_model, from_first_rank, on_all_ranks
from tensoropt_torch.runtime.job import check_group
from tensoropt_torch.runtime.lost_ranks import LostRanksError
from tensoropt_torch.tasks import (
    Example,
    Model,
    PlanningKeywords,
    PlanningOptions,
    example_of,
    planning_of,
    takes_keywords,
)

log = get_logger(__name__)


@takes_keywords(collective=True, planning=PlanningOptions)
def plan_of_job(
    folder: str | os.PathLike[str],
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    counts: Sequence[int] = (),
    memory_limit: float | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Plan | StagedPlan:
    """The plan for as many processes as run: the one that an earlier start has kept in
    ``folder``, or one that ``find_strategy`` picks now. Collective.

    Args:
        folder: plans are kept in its ``plans``, by number of processes and what was asked for.
        counts: for these numbers of devices plans are found and kept as well, if there are
            none, so that a start with fewer has nothing to search.
        others: as for ``find_strategy``.

    Raises:
        TensorOptError: on every rank; as ``find_strategy`` for as many processes as run. For
            other ``counts`` the log says what is wrong.
    """
    check_group("plan_of_job")

    def asked() -> tuple[Example, PlanningOptions]:
        check_memory_limit(memory_limit)
        if counts:
            check_counts(counts)
        return example_of(model, args, kwargs, keywords), planning_of(keywords)

    example, planning = on_all_ranks(asked)
    captured = on_all_ranks(example.capture)
    agree_on_model(captured)
    kept = _KeptPlans(Path(folder) / "plans", captured, f"{memory_limit} {planning!r}")
    own = dist.get_world_size()
    for count in dict.fromkeys([own, *counts]):
        if kept.load(count) is None:
            _find(kept, count, example, planning, memory_limit)
    found = kept.load(own)
    if found is None:  # which could not be written
        found = _found(own, example, planning, memory_limit)
    return found


def _found(
    count: int, example: Example, planning: PlanningOptions, memory_limit: float | None
) -> Plan | StagedPlan:
    return find_strategy(example, memory_limit=memory_limit, num_devices=count, planning=planning)


def _find(
    kept: _KeptPlans,
    count: int,
    example: Example,
    planning: PlanningOptions,
    memory_limit: float | None,
) -> None:
    try:
        plan = _found(count, example, planning, memory_limit)
    except LostRanksError:
        raise
    except TensorOptError as error:  # the same on all ranks
        if count == dist.get_world_size():
            raise
        log.warning("there is no plan for %d devices: %s", count, error)
        return
    from_first_rank(lambda: is_written(lambda: kept.save(plan), f"the plan for {count} devices"))


class _KeptPlans:
    """Plans of a model in a folder, for what is asked.

    Args:
        asked: in words.
    """

    def __init__(self, folder: Path, captured: CapturedModel, asked: str) -> None:
        text = f"{captured.fingerprint} {asked}"
        self._folder = folder
        self._captured = captured
        self._digest = hashlib.sha256(text.encode()).hexdigest()[:12]

    def load(self, count: int) -> Plan | StagedPlan | None:
        """The plan that rank 0 finds; None: there is none that can be read. Collective."""

        def text() -> tuple[str | None]:
            path = self._path(count)
            if not path.exists():
                return (None,)
            return (read_or(None, lambda: self._checked(path).to_json(), "it is found again"),)

        (found,) = from_first_rank(text)
        return None if found is None else any_of_json(found).with_model(self._captured)

    def save(self, plan: Plan | StagedPlan) -> None:
        """Raises TensorOptError: it cannot be written."""
        write_atomically(self._path(plan.num_devices), plan.to_json())

    def _path(self, count: int) -> Path:
        return self._folder / f"{count}-{self._digest}.json"

    def _checked(self, path: Path) -> Plan | StagedPlan:
        plan = load_any(path)
        plan.check_model(self._captured)
        return plan
