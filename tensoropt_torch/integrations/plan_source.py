"""How a model becomes parallel in a training loop of others."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from tensoropt_torch import api
from tensoropt_torch.emit import ParallelModule, WeightSource
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.tasks import Example, PlanningOptions


@dataclass(frozen=True)
class PlanSource:
    """Where the plan of a model comes from, and its values.

    Attributes:
        plan: a plan, or the file of one; None: find one.
        planning: how to find it; ``inputs`` are sharded in any case.
        memory_limit: bytes per device, as for ``find_strategy``.
        weights: what gives values to a model on the meta device.
        recompute: activations are to be checkpointed, unless ``planning`` says otherwise.
        check_capture: compare the captured graph with the model, as for ``parallelize``.
    """

    plan: Plan | str | Path | None = None
    planning: PlanningOptions | None = None
    memory_limit: float | None = None
    weights: WeightSource | None = None
    recompute: bool = False
    check_capture: bool = True

    def parallelize(self, example: Example, optimizer: str = "adamw") -> ParallelModule:
        """The model of the example under the plan. Collective.

        Args:
            optimizer: that is planned for unless ``planning`` names one.
        """
        plan = self.plan
        if plan is None:
            planning = self.planning or PlanningOptions(optimizer=optimizer)
            planning = replace(planning, inputs="sharded")
            if self.recompute and planning.recompute is None:
                planning = replace(planning, recompute=True)
            plan = api.find_strategy(example, planning=planning, memory_limit=self.memory_limit)
        elif not isinstance(plan, Plan):
            path = plan
            plan = on_all_ranks(lambda: Plan.load(path))
        if self.recompute and not plan.settings.recompute:
            warnings.warn(
                "activation_checkpointing is ignored: the plan recomputes nothing; find one with "
                "PlanningOptions(recompute=True)",
                stacklevel=4,
            )
        check_inputs(plan)
        return api.parallelize(
            example, plan, weights=self.weights, check_capture=self.check_capture
        )


def check_inputs(plan: Plan) -> None:
    """Raises TensorOptError unless the plan expects each rank's share of the batch."""
    if plan.inputs != "sharded":
        raise TensorOptError(
            "the plan is for inputs='replicated', but this loop gives each rank its share of the "
            "batch; plan with inputs='sharded'"
        )
