"""Stages whose micro-batches are recorded and called again, beside others that run one by one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tensoropt_torch import find_stages, parallelize
from tensoropt_torch.emit.boxed import BoxedStep
from tensoropt_torch.emit.compilation import compiled_parts
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.module.staged import StagedModule, StagePrograms
from tensoropt_torch.runtime.agreement import gather
from tests.distributed.models import Case
from tests.distributed.stage_loops import Trained, batches_of, results
from tests.distributed.staged import Pipeline, differences, trained
from tests.stages.models import make


def chunks_of(parallel: StagedModule) -> list[Any]:
    programs = programs_of(parallel)
    assert isinstance(programs, StagePrograms)
    return [chunk.variant for part in programs._calls._parts.values() for chunk in part.chunks]


def steps_of(variant: Any) -> list[BoxedStep]:
    """Of one part: of micro-batches whose gradients stay, and of the last one, where others have
    parts of the same parameters, or of all."""
    passes: list[BoxedStep] = [*variant._passes.values()]
    return passes or [variant.boxed]


def compared(pipeline: Pipeline) -> tuple[list[str], list[int], list[str]]:
    """What differs, how many programs each chunk of this rank has, and why one has none."""
    case = make(pipeline.model, pipeline.dtype, pipeline.rows)
    other = copy.deepcopy(case)
    plan = find_stages(case.model, case.args, measure=False, **case.keywords, **pipeline.options)
    found: list[Mapping[str, torch.Tensor]] = []
    programs: list[int] = []
    reasons: list[str] = []
    for one, is_recorded in ((case, True), (other, False)):
        torch.manual_seed(3)
        parallel = parallelize(one.model, plan, one.args, **one.keywords)
        assert isinstance(parallel, StagedModule)
        if not is_recorded:
            for variant in chunks_of(parallel):
                variant.boxed = None
        alone = Case(nn.Identity(), one.args, one.loss_fn, one.targets)
        found.append(trained(pipeline, parallel, alone))
        if is_recorded:
            boxed = [step for variant in chunks_of(parallel) for step in steps_of(variant)]
            programs = [len(step._programs) for step in boxed]
            reasons = [step.reason for step in boxed]
    return [*differences([dict(found[0])], dict(found[1]), 0.0)], programs, reasons


def loops_compared(several: Sequence[Trained]) -> list[tuple[list[str], list[str]]]:
    """What differs in loops whose micro-batches are recorded, and why some are not."""
    return [_loop_compared(trained) for trained in several]


def _loop_compared(trained: Trained) -> tuple[list[str], list[str]]:
    case = make(trained.model, trained.dtype)
    other = copy.deepcopy(case)
    with trained.casts:
        plan = find_stages(case.model, case.args, measure=False, outputs="all", **trained.options)
    found: list[dict[str, torch.Tensor]] = []
    reasons: list[str] = []
    for one, is_recorded in ((case, True), (other, False)):
        parallel = parallelize(one.model, plan, one.args)
        assert isinstance(parallel, StagedModule)
        if not is_recorded:
            for variant in chunks_of(parallel):
                variant.boxed = None
        found.append(results(parallel, trained, batches_of(one)))
        if is_recorded:
            steps = [step for variant in chunks_of(parallel) for step in steps_of(variant)]
            reasons = [step.reason or "" if step._programs else "nothing" for step in steps]
    return [*differences([found[0]], found[1], 0.0)], [reason for reason in reasons if reason]


def all_compared(pipelines: Sequence[Pipeline]) -> list[tuple[list[str], list[int], list[str]]]:
    """Of several."""
    return [compared(pipeline) for pipeline in pipelines]


def compiled(given: tuple[Pipeline, str]) -> tuple[list[str], list[int]]:
    """What differs in compiled stages, and how many operators of each chunk are compiled."""
    pipeline, backend = given
    case = make(pipeline.model, pipeline.dtype, pipeline.rows)
    one = copy.deepcopy(case)
    plan = find_stages(case.model, case.args, measure=False, **case.keywords, **pipeline.options)
    torch.manual_seed(3)
    parallel = parallelize(case.model, plan, case.args, compile=backend, **case.keywords)
    assert isinstance(parallel, StagedModule)
    alone = Case(nn.Identity(), case.args, case.loss_fn, case.targets)
    got = gather(trained(pipeline, parallel, alone))
    torch.manual_seed(3)
    expected = trained(pipeline, one.model, one)
    parts = [compiled_parts(variant.graph) for variant in chunks_of(parallel)]
    return [*differences(got, expected, 1e-8)], [sum(p.num_operators for p in q) for q in parts]


def written_between(_: Any = None) -> str:
    """What is said where a parameter is changed between forward and a backward that needs it."""
    case = make("skips")
    options: dict[str, Any] = {"stages": 2, "micro_batches": 2, "schedule": "gpipe"}
    plan = find_stages(case.model, case.args, measure=False, **case.keywords, **options)
    parallel = parallelize(case.model, plan, case.args, **case.keywords)
    for _ in range(2):  # of which the second is called again
        parallel(*case.args).backward()
    loss = parallel(*case.args)
    with torch.no_grad():
        for parameter in parallel.parameters():
            parameter.mul_(2)
    try:
        loss.backward()
    except Exception as error:  # of the other rank, maybe
        return str(error)
    return ""
