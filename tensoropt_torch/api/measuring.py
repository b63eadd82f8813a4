"""Measuring and simulating what plans cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch.distributed as dist

from tensoropt_torch import measure
from tensoropt_torch.config import Cluster, mesh_axes
from tensoropt_torch.frontend import as_module
from tensoropt_torch.measure import ProfileOptions, Validation, ValidationOptions
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.job import check_group, device_of_group
from tensoropt_torch.simulate import MemoryProfile, StepSettings, simulate_step
from tensoropt_torch.tasks import (
    RUNS_RANDOM_STRATEGIES,
    Example,
    Model,
    PlanningKeywords,
    PlanningOptions,
    StepKeywords,
    agreed_task,
    check_unused,
    cluster_of,
    example_of,
    model_of,
    planning_of,
    step_settings_of,
    takes_keywords,
)


@takes_keywords(step=StepSettings)
def simulate_memory(
    model: Model | Example,
    plan: Plan | StagedPlan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Unpack[StepKeywords],
) -> MemoryProfile:
    """The peak memory of one rank in a training step under ``plan``, and what it is
    made of (docs/costs.md, Simulated memory). Not collective; no tensor is real.

    Args:
        model, args, kwargs: as for ``parallelize``.
        plan: in stages too, where rank ``s n + k`` is rank k of stage s, of n.
        keywords: ``loss_fn`` and ``targets`` of an ``Example``; ``step``, and fields of
            ``StepSettings``, e.g. ``optimizer="sgd"``.

    Raises:
        TensorOptError: the plan was made for another model or batch, or has no
            such rank.
    """
    captured = model_of(plan, example_of(model, args, kwargs, keywords))
    plan.check_model(captured)
    return simulate_step(plan, captured, step_settings_of(keywords))


def profile_hardware(
    cluster: str | Path | Cluster | None = None,
    *,
    options: ProfileOptions | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[HardwareProfile, Path]:
    """Measures the devices, the collectives and the runtime of the running job, and
    keeps that for later jobs on the same hardware and software. Collective.

    Returns the profile and its file, which also serves as ``cluster=`` elsewhere. An
    interrupted measurement goes on where it was.

    Args:
        cluster: what describes memory and levels; by default as for planning.
        options: how much to measure, and where to write it.
        progress: called with steps done, steps in all, and what it is at; in place of the
            bar on a terminal.

    Raises:
        TensorOptError: on every rank; the file is damaged or cannot be written.
    """
    check_group("profile_hardware")
    described = on_all_ranks(lambda: cluster_of(cluster))
    axes = on_all_ranks(lambda: tuple(mesh_axes(described, dist.get_world_size())))
    return measure.profile_hardware(described, axes, device_of_group(), options, progress)


@takes_keywords(collective=True, planning=PlanningOptions)
def validate(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    options: ValidationOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Validation:
    """Runs random strategies of a model for a few steps each and compares predicted
    with measured step time, network time and peak memory. Collective.

    Args:
        options: how many strategies, steps and passes, the seed, the optimizer, for how
            long, and whether to run again what an earlier job has run.
        progress: called with runs of strategies done and in all; in place of the bar on a
            terminal.
        others: as for ``find_strategy``; ``args`` are real tensors.

    Raises:
        TensorOptError: on every rank; inputs are on the meta device, or an option is not for this.
    """
    check_group("validate")

    def asked() -> tuple[Example, PlanningOptions]:
        planning = planning_of(keywords)
        check_unused("validate", planning, RUNS_RANDOM_STRATEGIES)
        return example_of(model, args, kwargs, keywords), planning

    example, planning = on_all_ranks(asked)
    task = agreed_task(example, planning, dist.get_world_size())
    tell = None if progress is None else lambda done, total, _: progress(done, total)
    return measure.validate(
        as_module(example.model), task, example.batch, device_of_group(), options, tell
    )
