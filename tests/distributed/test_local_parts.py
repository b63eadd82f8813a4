"""Gradients of local parts lie in memory as their parameters do, as fused optimizers need it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

from tensoropt_torch.emit.local_parts import local_part
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.test_local_parts"
LOSSES = {
    "transposed": lambda x: (x.t().contiguous() * torch.arange(6.0).view(3, 2)).sum(),
    "expanded": lambda x: x.sum(),
    "rows": lambda x: (x.sum(0) * torch.arange(3.0)).sum(),
}


def step(parameter: nn.Parameter, kind: str, fused: bool) -> torch.Tensor:
    optimizer = torch.optim.AdamW([parameter], lr=0.1, eps=1.0, fused=fused)
    for _ in range(2):
        LOSSES[kind](local_part(parameter)).backward()
    assert parameter.grad is not None
    with torch.no_grad():
        gradient = local_part(parameter.grad)
        assert gradient.stride() == local_part(parameter).stride(), kind
        optimizer.step()
        return local_part(parameter).clone()


def steps(_: None) -> dict[str, float]:
    mesh = init_device_mesh("cpu", (1,))
    errors = {}
    for kind in LOSSES:
        for fused in (False, True):
            distributed = DTensor.from_local(torch.ones(2, 3), mesh, [Replicate()])
            ours = step(nn.Parameter(distributed), kind, fused)
            theirs = step(nn.Parameter(torch.ones(2, 3)), kind, fused)
            errors[f"{kind}, fused={fused}"] = float((ours - theirs).abs().max())
    return errors


def test_steps_are_those_of_plain_parameters() -> None:
    for name, error in run_ranks(1, f"{HERE}:steps")[0].items():
        assert error == pytest.approx(0, abs=1e-6), name
