"""Training runs of plans of one task, on the running job."""

from __future__ import annotations

import gc
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.measure.machine.key import key_of_job
from tensoropt_torch.measure.runs.batch import Batch, share_of
from tensoropt_torch.measure.runs.training import Training, optimizer_maker
from tensoropt_torch.measure.runs.validation_options import MakeOptimizer
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.staged import StagedModule, groups_of
from tensoropt_torch.plan import Plan, Settings, StagedPlan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.agreement import FailedRankError, gather
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.lost_ranks import WaitEndedError, waits_may_end
from tensoropt_torch.runtime.stage_groups import StageGroups
from tensoropt_torch.values import WeightSource


class Trainings:
    """What all runs of plans of a task have in common: the model, this rank's share of the batch,
    the process groups and the optimizer. All of it is collective.

    Args:
        model: with real values or on the meta device; it is not changed.
        task: what the plans are of.
        settings: those of one of the plans.
        batch: the global batch.
        device: where to run.
        make_optimizer: by default the optimizer that is planned for.
    """

    def __init__(
        self,
        model: nn.Module,
        task: PlanningTask,
        settings: Settings,
        batch: Batch,
        device: torch.device,
        make_optimizer: MakeOptimizer | None = None,
    ) -> None:
        self._model = model
        self._device = device
        self._sizes = [size for size, _ in settings.mesh_axes]
        self._groups: list[AxisGroups | StageGroups] = []
        self.batch = share_of(batch, task.captured, settings, device)
        self._make_optimizer = make_optimizer or optimizer_maker(task.optimizer)

    def start(self, plan: Plan | StagedPlan, weights: WeightSource | None = None) -> Training:
        """What trains with a plan, with the values of the model, or of ``weights``.

        Raises:
            FailedRankError: on every rank; a step in stages fails on some.
        """
        given = self._make_optimizer, self.batch, weights
        if isinstance(plan, Plan):
            return Training.of(self._model, plan, self._context, *given)
        training: Training | None = Training.of_stages(self._model, plan, self._device, *given)
        assert training is not None and isinstance(training.module, StagedModule)
        groups = groups_of(training.module)
        self._groups.append(groups)
        reason = _reason_to_leave(training)
        if reason is not None:
            training = None
            gc.collect()  # with it what is under way
            groups.leave()  # which ends the waits of other stages
        _raise_of_any(reason)
        assert training is not None
        return training

    @cached_property
    def _context(self) -> RankContext:
        """Of plans without stages."""
        context = RankContext.make(self._sizes, self._device)
        self._groups.append(context.groups)
        return context

    def close(self) -> None:
        """Leaves the process groups; nothing that was started runs any more."""
        gc.collect()  # modules hold themselves, and what they have on the device
        while self._groups:
            self._groups.pop().close()


def _reason_to_leave(training: Training) -> str | None:
    """Of the process groups of a step in stages, which may fail in one of them alone: what it fails
    by, or nothing where another rank has left them before. None: it is through."""
    try:
        with waits_may_end():
            training.step()
    except WaitEndedError:
        return ""
    except Exception as error:
        return f"{error} ({type(error).__name__})"
    return None


def _raise_of_any(reason: str | None) -> None:
    """Raises FailedRankError if a rank had a reason to leave. Collective."""
    reports = [report for (report,) in gather((reason,))]
    failed = [f"rank {rank}: {report}" for rank, report in enumerate(reports) if report]
    if any(report is not None for report in reports):
        raise FailedRankError(failed[0] if failed else "a wait for other ranks has ended")


def conditions_of(
    captured: CapturedModel, settings: Settings, device: torch.device
) -> dict[str, Any]:
    """What decides what steps of a strategy take: also the costs of collectives, by which
    programs of reshards are chosen. Not the measured operators, which become more: they only
    say what is predicted. Collective."""
    return {
        "model": captured.fingerprint,
        "settings": asdict(replace(settings, operators=())),
        "machine": asdict(key_of_job(device, [size for size, _ in settings.mesh_axes])),
    }
