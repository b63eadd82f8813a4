"""Short training runs of one model under plans, on every rank of a job on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch.measure.runs.training import Training, optimizer_maker
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space, varied_strategy

CPU = torch.device("cpu")


class Trainer:
    """Runs plans of a task, which share their process groups; ``close`` leaves these.

    Args:
        model: whose values every run begins with.
        args: the global batch.
        task: with the captured model.
    """

    def __init__(
        self, model: nn.Module, args: tuple[torch.Tensor, ...], task: PlanningTask
    ) -> None:
        self._model = model
        self._args = args
        self._task = task
        self._settings = task.settings(dist.get_world_size())
        self._context = RankContext.make([size for size, _ in self._settings.mesh_axes], CPU)

    def random_plans(self, count: int) -> Iterator[Plan]:
        """Of strategies with the seeds from 0 on."""
        space = make_space(self._task.captured, self._settings)
        for seed in range(count):
            strategy = varied_strategy(space, seed)
            yield Plan.of(space, self._settings, self._task.captured, strategy)

    def start(self, plan: Plan) -> Training:
        """The model under a plan, with the optimizer of the task."""
        plan = plan.with_model(self._task.captured)
        make_optimizer = optimizer_maker(self._task.optimizer)
        return Training.of(self._model, plan, self._context, make_optimizer, (self._args, {}))

    def close(self) -> None:
        """Leaves the process groups. Collective."""
        self._context.groups.close()
