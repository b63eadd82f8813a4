"""Stages that are planned in a job have the costs that it measured."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tensoropt_torch import MeasureOptions, StagedPlan, find_stages, find_strategy, parallelize
from tests.distributed.harness import run_ranks

HERE = "tests.staging.test_measured"
MEASURING = MeasureOptions(budget_s=6.0, max_bytes=1 << 16, random_strategies=1, rounds=1)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))


def described(plan: StagedPlan) -> list[tuple[int, int, str]]:
    """Of parts: how many collectives and operators were measured, and where speeds are from."""
    settings = [part.plan.settings for part in plan.parts]
    return [
        (len({axes for _, axes, _ in s.measured}), len(s.operators), s.cluster["device"]["source"])
        for s in settings
    ]


def planned(_: object) -> dict[str, Any]:
    batch = torch.ones(8, 16), torch.zeros(8, 16)
    given: dict[str, Any] = {"loss_fn": F.mse_loss, "targets": batch[1:]}
    one: Any = model()
    plan = find_stages(one, batch[:1], stages=["2"], micro_batches=2, measuring=MEASURING, **given)
    # Two rows in each micro-batch, which four devices cannot share.
    four = {"stages": ["2"], "micro_batches": 4, "inputs": "sharded"}
    shared = find_stages(one, batch[:1], measuring=MEASURING, **four, **given)
    numbers = {"max_stages": 2, "max_micro_batches": 4}
    searched = find_stages(one, batch[:1], measuring=MEASURING, **numbers, **given)
    parallel = parallelize(model(), plan, batch[:1], **given)
    loss = parallel(*batch)
    loss.backward()
    picked = find_strategy(one, batch[:1], measuring=MEASURING, **numbers, **given)
    validated = find_strategy(
        one, batch[:1], measuring=MEASURING, validate=2, measure=True, **numbers, **given
    )
    expected = F.mse_loss(one(batch[0]), batch[1])
    return {
        "stages": described(plan),
        "sent": plan.sent_s,
        "loss": (float(loss), float(expected)),
        "picked": [type(one).__name__ for one in (picked, validated)],
        "shared": described(shared),
        "searched": described(searched),
    }


def test_both_functions_measure() -> None:
    first, *others = run_ranks(4, f"{HERE}:planned", None, 240)
    for sets, operators, source in first["stages"] + first["shared"] + first["searched"]:
        assert sets == 1  # of two devices in a stage
        assert operators > 0
        assert source == "measured on the running job"
    ((values_s, gradients_s),) = first["sent"]
    assert values_s > 0
    assert gradients_s > 0
    assert abs(first["loss"][0] - first["loss"][1]) < 1e-6
    assert {*first["picked"]} <= {"Plan", "StagedPlan"}
    for other in others:
        assert {**other, "loss": first["loss"]} == first
