"""How a model becomes parallel in a training loop of others."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensoropt_torch import api
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.plan import Plan, StagedPlan, load_any
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.tasks import Example, PlanningOptions
from tensoropt_torch.tasks.options import Inputs
from tensoropt_torch.values import WeightSource

AnyPlan = Plan | StagedPlan

# Loops that pad each batch to its longest sample have as many shapes as lengths.
MAX_VARIANTS = 128


@dataclass(frozen=True)
class PlanSource:
    """Where the plan of a model comes from, and its values.

    Attributes:
        plan: a plan, or the file of one; None: find one.
        planning: how to find it; ``inputs`` are sharded in any case.
        memory_limit: bytes per device, as for ``find_strategy``.
        weights: what gives values to a model on the meta device.
        inputs: where inputs have the rows of the batch; None: it is found.
        max_variants: how many graphs there may be for batches of other shapes.
        recompute: activations are to be checkpointed, unless ``planning`` says otherwise.
        check_capture: compare the captured graph with the model, as for ``parallelize``.
    """

    plan: AnyPlan | str | Path | None = None
    planning: PlanningOptions | None = None
    memory_limit: float | None = None
    weights: WeightSource | None = None
    recompute: bool = False
    inputs: Inputs | None = None
    max_variants: int = MAX_VARIANTS
    check_capture: bool = True

    @property
    def given_inputs(self) -> Inputs | None:
        """What the user says of the inputs: by itself, or in ``planning`` by name."""
        planned = self.planning.inputs if self.planning is not None else None
        return self.inputs or (planned if isinstance(planned, Mapping) else None)

    @property
    def given_plan(self) -> AnyPlan | None:
        """The plan that the user gives."""
        given = self.plan
        return given if given is None or isinstance(given, AnyPlan) else load_any(given)

    def parallelize(
        self, example: Example, inputs: Inputs = "sharded", optimizer: str = "adamw"
    ) -> ParallelModule:
        """The model of the example under the plan. Collective.

        Args:
            inputs: where inputs have the rows of the batch.
            optimizer: that is planned for unless ``planning`` names one.
        """
        plan = self.plan
        if plan is None:
            planning = self.planning or PlanningOptions(optimizer=optimizer)
            planning = replace(planning, inputs=inputs)
            if self.recompute and planning.recompute is None:
                planning = replace(planning, recompute=True)
            plan = api.find_strategy(example, planning=planning, memory_limit=self.memory_limit)
        elif not isinstance(plan, AnyPlan):
            path = plan
            plan = on_all_ranks(lambda: load_any(path))
        if self.recompute and not plan.recomputes:
            warnings.warn(
                "activation_checkpointing is ignored: the plan recomputes nothing; find one with "
                "PlanningOptions(recompute=True)",
                stacklevel=4,
            )
        check_inputs(plan)
        return api.parallelize(
            example,
            plan,
            weights=self.weights,
            max_variants=self.max_variants,
            check_capture=self.check_capture,
        )


def sources_of_parts(
    source: PlanSource,
    names: Sequence[str],
    plan: AnyPlan | str | Path | Mapping[str, AnyPlan | str | Path] | None,
    inputs: Inputs | Mapping[str, Inputs] | None,
) -> dict[str, PlanSource]:
    """The sources of the plans of these parts of a model, of which several have plans and inputs
    by their names.

    Raises:
        TensorOptError: what is given is not by the names of the parts.
    """
    if len(names) == 1 and not isinstance(plan, Mapping):
        given: dict[str, Any] = {"plan": plan, "inputs": inputs}
        said = {key: value for key, value in given.items() if value is not None}
        return {names[0]: replace(source, **said) if said else source}
    if source.weights is not None:
        raise TensorOptError(
            f"weights= is for one module, and {', '.join(names)} are to run under plans; build "
            "them with their weights"
        )
    plans = _by_names("plan", plan, names, "'file.json'")
    modes = _by_names("inputs", inputs, names, "{'x': 0}")
    return {n: replace(source, plan=plans.get(n), inputs=modes.get(n)) for n in names}


def _by_names(what: str, given: Any, names: Sequence[str], example: str) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not set(given) <= set(names):
        got = sorted(given) if isinstance(given, Mapping) else given
        raise TensorOptError(
            f"{what}={got}, but modules {', '.join(names)} run under plans of their own; give it "
            f"by their names: {what}={{'{names[0]}': {example}}}"
        )
    return given


def check_inputs(plan: AnyPlan) -> None:
    """Raises TensorOptError unless the plan expects each rank's share of the batch."""
    if plan.inputs != "sharded":
        raise TensorOptError(
            "the plan is for inputs='replicated', but this loop gives each rank its share of the "
            "batch; plan with inputs='sharded'"
        )
