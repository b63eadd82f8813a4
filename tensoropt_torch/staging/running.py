"""The module of a plan in stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tensoropt_torch import measure
from tensoropt_torch.emit.compiler import Compile
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, as_module
from tensoropt_torch.module.shared import check_not_shared, note_parameters
from tensoropt_torch.module.stage_calls import StageVariantOptions
from tensoropt_torch.module.staged import StagedModule, parallelize_stages
from tensoropt_torch.module.variants import VariantOptions
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.job import device_of_group
from tensoropt_torch.staging.pinned import find_pinned_stages
from tensoropt_torch.tasks import Example, model_of
from tensoropt_torch.values import WeightSource


def stages_of(
    example: Example,
    plan: StagedPlan,
    device: torch.device | None,
    weights: WeightSource | None,
    refused: Mapping[str, Any],
    options: VariantOptions,
    compile: Compile = False,
) -> StagedModule:
    """The module of this rank's stage. Collective; of what is ``refused`` none may be asked for."""

    def checked() -> CapturedModel:
        for name, value in refused.items():
            if value:
                raise TensorOptError(
                    f"{name}={value!r} is not for plans in stages; leave it out, or plan without "
                    "stages (find_strategy)"
                )
        check_not_shared(as_module(example.model))
        return model_of(plan, example)

    captured = on_all_ranks(checked)
    model = as_module(example.model)
    compared = measure.KeptComparison(model, captured)
    where = device or device_of_group()
    parallel = parallelize_stages(
        example.model,
        captured,
        plan,
        where,
        weights,
        options=StageVariantOptions(find_pinned_stages, options.shapes, options.max_variants),
        check_capture=options.check_capture,
        compared=compared,
        compile=compile,
    )
    note_parameters(model, parallel)
    return parallel
