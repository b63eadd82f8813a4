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
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.tasks import Example, PlanningOptions
from tensoropt_torch.tasks.options import Inputs
from tensoropt_torch.values import WeightSource

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

    plan: Plan | str | Path | None = None
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
    def given_plan(self) -> Plan | None:
        """The plan that the user gives."""
        path = self.plan
        check_no_stages(path)
        return path if path is None or isinstance(path, Plan) else Plan.load(path)

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
            found = api.find_strategy(example, planning=planning, memory_limit=self.memory_limit)
            if isinstance(found, StagedPlan):
                raise TensorOptError(
                    f"a plan in {found.stages} stages is the fastest, which the training loop of "
                    "this integration does not run; leave max_stages out of planning"
                )
            plan = found
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
            example,
            plan,
            weights=self.weights,
            max_variants=self.max_variants,
            check_capture=self.check_capture,
        )


def sources_of_parts(
    source: PlanSource,
    names: Sequence[str],
    plan: Plan | str | Path | Mapping[str, Plan | str | Path] | None,
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


def check_no_stages(plan: object) -> None:
    """Raises TensorOptError if the plan is one in stages."""
    if isinstance(plan, StagedPlan):
        raise TensorOptError(
            "the plan is one in stages, whose module takes the same global batch on every rank, "
            "but this loop gives each rank its share of the batch; train it with a loop of your "
            "own, or plan without stages (find_strategy)"
        )


def check_inputs(plan: Plan) -> None:
    """Raises TensorOptError unless the plan expects each rank's share of the batch."""
    check_no_stages(plan)
    if plan.inputs != "sharded":
        raise TensorOptError(
            "the plan is for inputs='replicated', but this loop gives each rank its share of the "
            "batch; plan with inputs='sharded'"
        )
