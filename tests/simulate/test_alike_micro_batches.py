"""Micro-batches that need what others need are not run, and the profile is that of a step in which
all are, but for its curve, and for who made the outputs of those."""

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch.module.executor import Executor
from tensoropt_torch.simulate import CATEGORIES, StepSettings, simulate_step, simulated_rank


class WithOutputs(nn.Module):
    """Returns its loss, what belongs to rows, also as a part of something larger, and one sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256), nn.Dropout(), nn.GELU(), nn.Linear(256, 256), nn.Linear(256, 64)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = self.layers(x)
        loss = (made - y).square().mean()
        return loss, made.transpose(0, 1).t()[:, :8], made.argmax(-1)


@pytest.mark.parametrize(
    ("recompute", "device"),
    [
        (True, "cpu"),
        (False, "cuda"),
        pytest.param(False, "cpu", marks=pytest.mark.slow),
        pytest.param(True, "cuda", marks=pytest.mark.slow),
    ],
)
def test_the_profile_is_that_of_all(
    monkeypatch: pytest.MonkeyPatch, recompute: bool, device: str
) -> None:
    model, args = WithOutputs(), (torch.empty(64, 64), torch.empty(64, 64))
    frontier = tensoropt_torch.find_frontier(
        model,
        args,
        cluster="h100-8",
        num_devices=4,
        recompute=recompute,
        max_micro_batches=16,
    )
    plans = [point.plan for point in frontier if point.plan.settings.micro_batches > 3]
    assert len(plans) >= 5
    settings = StepSettings(device=device, measure_workspaces=False)
    found = [simulate_step(plan, plan.captured, settings) for plan in plans]
    monkeypatch.setattr(simulated_rank, "_AlikeMicroBatches", Executor)
    for plan, short in zip(plans, found, strict=True):
        whole = simulate_step(plan, plan.captured, settings)
        assert short.peak_bytes == whole.peak_bytes, plan
        assert short.phase_peaks == whole.phase_peaks
        for category in set(CATEGORIES) - {"activations", "reshard buffers", "temporaries"}:
            assert short.categories[category] == whole.categories[category]
        assert len(short.curve) < len(whole.curve)
