"""What stages hold of what crosses their cuts, against simulated peaks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tensoropt_torch import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.simulate import step_of, with_peaks
from tensoropt_torch.staging import StageOptions, plan_stages

DEVICES = 4


class Layer(nn.Module):
    """A residual layer that keeps little."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 8)
        self.outer = nn.Linear(8, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(self.inner(x))


def peaks_and_sums(layers: int) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """Of four stages: peaks, sums, and how much of these crosses cuts."""
    with torch.device("meta"):
        model = nn.Sequential(*(Layer() for _ in range(layers)))
        x, y = torch.zeros(8192, 64), torch.zeros(8192, 64)
    captured = capture(model, (x,), loss_fn=nn.MSELoss(), targets=(y,))
    task = PlanningTask(captured, load_cluster("cpu"), "adamw")
    plan = plan_stages(task, StageOptions(DEVICES, 8), DEVICES)
    peaks = with_peaks(plan, captured, step_of(task)).peaks
    return peaks, plan.memory_of_stages, [part.held_bytes for part in plan.parts]


def test_stages_in_the_middle_differ_by_what_is_in_flight() -> None:
    peaks, sums, held = peaks_and_sums(16)
    micro_batch = 8192 // 8 * 64 * 4
    # By stage 4, 3, 2 and 1 in flight; one more is received ahead.
    assert [round(h / micro_batch) for h in held] == [4, 4 + 3, 3 + 2, 2]
    first, second = peaks[1:3], sums[1:3]
    assert first[0] - first[1] > 1.9 * micro_batch
    assert (second[0] - second[1]) / (first[0] - first[1]) > 0.95
    without = [total - own for total, own in zip(sums, held, strict=True)]
    assert all(s <= p for s, p in zip(sums, peaks, strict=True))
    for near, far, peak in zip(sums, without, peaks, strict=True):
        assert peak - near < peak - far
