"""Plans that earlier jobs have found, in files: one for each model under each settings on each
kind of machines, so that a job that is started again searches and measures nothing.

A file is found by all that its plan depends on (``conditions_of``), but for the times of
measured operators: new ones are added by every model, and other plans stay as good as they
were. What is checked is that those which the plan was made with are still what is known.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tensoropt_torch.config.records import Positive, Record, Text
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.frontend.lowering import memory_orders
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.kept.conditioned import ConditionedFile
from tensoropt_torch.measure.kept.files import digest_of_package, is_written, read_or
from tensoropt_torch.measure.kept.operator_times import known_operators, records
from tensoropt_torch.measure.kept.sealed import SealedFormat
from tensoropt_torch.measure.machine.key import MachineKey, key_of_job
from tensoropt_torch.plan import OpRecord, Plan, StagedPlan
from tensoropt_torch.plan.files import FORMAT_VERSION
from tensoropt_torch.plan.staged import any_of_json
from tensoropt_torch.planner.task import PlanningTask

log = get_logger(__name__)

FILE = SealedFormat("kept plan", 1, "plan again")


@dataclass(frozen=True)
class _Content(Record):
    plan: Text
    operators: Text
    made_at: Positive


@dataclass(frozen=True)
class KeptPlan:
    """A plan that an earlier job has found, so many seconds ago, and its file."""

    plan: Plan | StagedPlan
    age_s: float
    path: Path


class KeptPlans:
    """The file of the plan that is found for a task of the running job. Its methods are those
    of one rank, whose folder decides for all; what does not work there is a warning of the log,
    and never an error.

    Args:
        task: with the costs of the running job but for operators.
        count: devices that are planned for.
        device: of this process.
        asked: what else decides which plan is found, by name: dataclasses or plain data.
    """

    def __init__(
        self, task: PlanningTask, count: int, device: torch.device, asked: Mapping[str, Any]
    ) -> None:
        """Collective."""
        settings = task.settings(count)
        self._machine = key_of_job(device, [size for size, _ in settings.mesh_axes])
        self._task = task
        self._count = count
        self._asked = asked

    @cached_property
    def _file(self) -> ConditionedFile:
        conditions = conditions_of(self._task, self._count, self._machine, self._asked)
        return ConditionedFile("plans", FILE, conditions)

    def load(self) -> KeptPlan | None:
        """The plan, without its model; None if there is none, or operators that it was made
        with were measured again or forgotten."""
        found = read_or(None, self._read, "the kept plan is not used")
        if found is None:
            return None
        content, plan = found
        if content.operators != self._digest_of_known(plan):
            log.info("the plan in '%s' was made with other times of operators", self._file.path)
            return None
        return KeptPlan(plan, max(0.0, time.time() - content.made_at), self._file.path)

    def keep(self, plan: Plan | StagedPlan, operators: Iterable[OpRecord]) -> bool:
        """Replaces the file, and says whether that was possible. ``operators`` are those of the
        task, as they were measured."""
        keys = set(_operators_of(plan))
        used = [record for record in operators if record[0] in keys]
        content = _Content(plan.to_json(), _digest(used), time.time())
        return is_written(lambda: self._file.write(asdict(content)), "the plan")

    def _read(self) -> tuple[_Content, Plan | StagedPlan] | None:
        content = self._file.read_as(_Content)
        if content is None:
            return None
        return content, any_of_json(content.plan, f"'{self._file.path}'")

    def _digest_of_known(self, plan: Plan | StagedPlan) -> str:
        """Of the operators of the plan as they are known now."""
        keys = _operators_of(plan)
        known = known_operators(self._machine) if keys else {}
        samples = [known[key] for key in keys if key in known]
        return _digest(records(samples, [sample.family for sample in samples]))


def plain_options(planning: Any) -> dict[str, Any]:
    """Planning options as plain data, but for what decides nothing, and for the cluster and the
    constraints, which the task says in full."""
    named = {part.name: getattr(planning, part.name) for part in fields(planning)}
    del named["cluster"], named["pin"], named["forbid"]
    for name, value in named.items():
        if is_dataclass(value) and not isinstance(value, type):
            named[name] = asdict(value)
            named[name].pop("fresh", None)
    return named


def conditions_of(
    task: PlanningTask, count: int, machine: MachineKey, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """All that decides which plan is found, as plain data.

    Raises:
        TypeError: something of it is no data, such as a function.
    """
    conditions = {
        "model": _description(task.captured),
        "settings": task.settings(count),
        "memory_limit": task.default_memory_limit,
        "search": task.search,
        "stages": [task.max_stages, str(task.stage_pins)],
        "machine": machine,
        "package": digest_of_package(),
        "plan_format": FORMAT_VERSION,
        **asked,
    }
    plain: dict[str, Any] = json.loads(json.dumps(conditions, default=_plain, sort_keys=True))
    return plain


def _description(captured: CapturedModel) -> dict[str, Any]:
    """The graph, by its fingerprint: operators, shapes, dtypes, literals, registered rules;
    and what that does not tell: names, and orders in memory."""
    sources = [(source.kind, source.names) for source in captured.sources]
    calls = [node for node in captured.lowering.nodes if node.op == "call_function"]
    orders = [memory_orders(node) for node in calls]
    return {"fingerprint": captured.fingerprint, "sources": sources, "orders": orders}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is no plain data")


def _operators_of(plan: Plan | StagedPlan) -> list[str]:
    """Those whose times were measured, each once."""
    plans = plan.plans if isinstance(plan, StagedPlan) else (plan,)
    return [*dict.fromkeys(record[0] for one in plans for record in one.settings.operators)]


def _digest(operators: Iterable[OpRecord]) -> str:
    text = json.dumps(sorted(operators))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
