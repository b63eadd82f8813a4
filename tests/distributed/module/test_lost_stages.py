"""A rank that fails or hangs in a stage: the others end with words that name stage and
micro-batch."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Literal

import pytest
import torch.distributed as dist

from tensoropt_torch import TensorOptError, find_stages, parallelize
from tensoropt_torch.module.stage_step import StageStep
from tensoropt_torch.program.stage_schedules import RunForward
from tests.distributed.harness import run_ranks
from tests.stages.models import make

HERE = "tests.distributed.module.test_lost_stages"
TIMEOUT_S = 4.0
FEW_S = 8.0  # the notes of others, and a busy machine
How = Literal["fails", "hangs"]


def run(given: tuple[How, int]) -> tuple[str, float]:
    """On a rank: the error, and the seconds until then."""
    how, stage = given
    world = dist.group.WORLD
    assert world is not None
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT_S), world)
    case = make("skips")
    plan = find_stages(case.model, case.args, measure=False, stages=2, micro_batches=4)
    parallel = parallelize(case.model, plan, case.args)
    parallel(*case.args).backward()
    actions: Any = vars(__import__(StageStep.__module__, fromlist=["_RUN"]))["_RUN"]
    forward = actions[RunForward]

    def broken(step: StageStep, action: RunForward) -> None:
        if action.micro_batch == 1:
            if how == "fails":
                raise OSError("the disk is full")
            time.sleep(TIMEOUT_S + FEW_S)
        forward(step, action)

    if dist.get_rank() == stage:
        actions[RunForward] = broken
    start = time.monotonic()
    try:
        parallel(*case.args).backward()
    except (TensorOptError, OSError) as error:
        return "\n".join([str(error), *getattr(error, "__notes__", [])]), time.monotonic() - start
    return "", 0.0


@pytest.mark.parametrize(("how", "stage"), [("fails", 0), ("fails", 1), ("hangs", 1)])
def test_others_are_told_of_stage_and_micro_batch(how: How, stage: int) -> None:
    found = run_ranks(2, f"{HERE}:run", (how, stage))
    text, seconds = found[1 - stage]
    what = "what the stage before sends" if stage == 0 else "the gradients that the stage after"
    assert f"waiting for {what}" in text and f"micro-batch 1 in stage {1 - stage}" in text
    assert f"rank {stage}" in text
    assert seconds < TIMEOUT_S + FEW_S
    if how == "fails":
        what = f"the forward of micro-batch 1 in stage {stage}"
        told = f"rank {stage} has failed in {what} with OSError: the disk is full"
        ended = f"rank {stage} has ended with OSError: the disk is full, after {what}"
        assert told in text or ended in text
        assert f"Likely: the error of rank {stage}" in text
        assert f"the forward of micro-batch 1 in stage {stage}" in found[stage][0]
