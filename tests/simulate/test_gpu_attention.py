"""Attention in plans for GPUs keeps scores where PyTorch has no fused kernel on CUDA for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.memory.job import random_plan
from tensoropt_torch.frontend import capture
from tensoropt_torch.simulate import StepSettings, simulate_step
from tensoropt_torch.simulate.gpu_attention import has_fused_kernel

HALF, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64


def arguments(dtype: torch.dtype, heads: int = 4, dim: int = 64, **more: Any) -> dict[str, Any]:
    """Of 4 query heads over 128 rows."""
    query = torch.empty(2, 4, 128, dim, dtype=dtype, device="meta")
    key = torch.empty(2, heads, 128, dim, dtype=dtype, device="meta")
    return {"query": query, "key": key, "value": key, **more}


def mask(dtype: torch.dtype) -> torch.Tensor:
    """One for each head, that needs a gradient."""
    return torch.empty(1, 4, 128, 128, dtype=dtype, device="meta", requires_grad=True)


@pytest.mark.parametrize(
    ("given", "fused"),
    [
        (arguments(HALF), True),
        (arguments(SINGLE), True),
        (arguments(DOUBLE), False),
        (arguments(SINGLE, dropout_p=0.1), True),
        (arguments(HALF, heads=2, enable_gqa=True), True),
        (arguments(SINGLE, heads=2, enable_gqa=True), False),
        (arguments(HALF, heads=2, enable_gqa=True, attn_mask=mask(HALF)), False),
        (arguments(HALF, attn_mask=mask(HALF)), True),
        (arguments(SINGLE, attn_mask=mask(SINGLE)), True),
        (arguments(SINGLE, attn_mask=mask(SINGLE).transpose(2, 3)), False),
        (arguments(SINGLE, dim=62), False),
        (arguments(HALF, dim=62), True),
        (arguments(HALF, dim=264), True),
        (arguments(HALF, dim=260), False),
    ],
)
def test_kernels_follow_from_arguments(given: dict[str, Any], fused: bool) -> None:
    assert has_fused_kernel(given) == fused


class Attention(torch.nn.Module):
    """Attention of 4 heads of 16 over 256 rows, with dropout and a mask that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 192)
        self.mask = torch.nn.Parameter(torch.zeros(1, 4, 256, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 256, 64) -> the loss."""
        parts = self.up(x).unflatten(-1, (3, 4, 16)).transpose(1, 3).unbind(2)
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(*parts, attn_mask=self.mask, dropout_p=0.1).square().mean()


def test_scores_are_kept_on_a_cpu_and_not_on_a_gpu() -> None:
    captured = capture(Attention(), (torch.zeros(8, 256, 64),))
    plan = random_plan(captured, 1, 0)
    scores = 4 * 8 * 4 * 256 * 256
    settings = StepSettings("sgd", measure_workspaces=False)
    on_cpu = simulate_step(plan, captured, settings)
    on_gpu = simulate_step(plan, captured, StepSettings("sgd", "cuda"))
    assert on_cpu.categories["activations"] >= 2 * scores
    assert on_gpu.categories["activations"] < scores / 2
    assert on_gpu.peak_bytes >= scores  # the gradient of the mask, before it is summed up
