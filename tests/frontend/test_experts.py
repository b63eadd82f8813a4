"""Experts as Hugging Face computes them become one call, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

# Registers transformers::grouped_mm_fallback.
import transformers.integrations.moe  # noqa: F401
from torch import nn
from torch.nn import functional as F

from benchmarks.coverage.bits import differing_bits
from benchmarks.coverage.zoo import make
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.frontend.passes import target_name
from tests.frontend.training import assert_bit_equal, train_captured, train_module

TARGET = "tensoropt.routed_experts.default"
EXPERTS, CHOSEN, WIDTH, INNER = 4, 3, 8, 12
Activation = Callable[[torch.Tensor], torch.Tensor]


class Experts(nn.Module):
    """Three of four experts for each token. ``changed`` is one thing that is not as in
    Hugging Face's experts."""

    def __init__(self, activation: Activation = F.silu, gated: bool = True, changed: str = ""):
        super().__init__()
        torch.manual_seed(1)
        self.activation, self.gated, self.changed = activation, gated, changed
        self.router = nn.Linear(WIDTH, EXPERTS)
        columns = (2 if gated else 1) * INNER
        self.up = nn.Parameter(torch.randn(EXPERTS, columns, WIDTH))
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER))

    def gate(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.gated:
            return self.activation(hidden)
        first, second = hidden.chunk(2, -1)
        if self.changed == "halves":
            first, second = second, first
        return self.activation(first) * second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(t, d) to the same shape."""
        best, chosen = self.router(x).softmax(-1).topk(CHOSEN, -1)
        expert, order = torch.sort(chosen.reshape(-1), descending=self.changed == "descending")
        bins = EXPERTS - 1 if self.changed == "bins" else EXPERTS
        counts = torch.histc(expert.float(), bins=EXPERTS, min=0, max=bins - 1)
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        product = torch.ops.transformers.grouped_mm_fallback
        tokens = order // (CHOSEN + 1 if self.changed == "tokens" else CHOSEN)
        hidden = product(x[tokens], self.up.transpose(-2, -1), ends)
        each = product(self.gate(hidden), self.down.transpose(-2, -1), ends)
        if self.changed == "norm":
            each = each.tanh()
        each = each * best.reshape(-1)[order].unsqueeze(-1)
        inverse = torch.empty_like(order)
        numbers = torch.arange(order.size(0))
        inverse[order] = numbers.flip(0) if self.changed == "inverse" else numbers
        total = each[inverse].view(len(x), CHOSEN, WIDTH)
        if self.changed == "dtype":
            return total.sum(1, dtype=torch.float64).float()
        return total.mean(1) if self.changed == "mean" else total.sum(1)


def captured_bits(model: Experts) -> CapturedModel:
    """The captured model, which computes the bits of the module."""
    torch.set_num_threads(1)
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    captured = capture(model, (x,))
    assert_bit_equal(train_captured(model, captured, (x,)), train_module(model, (x,)))
    return captured


def targets(captured: CapturedModel) -> list[str]:
    return [target_name(node) for node in captured.graph_module.graph.nodes if target_name(node)]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (F.silu, "silu"),
        (F.relu, "relu"),
        (F.gelu, "gelu"),
        (partial(F.gelu, approximate="tanh"), "gelu_tanh"),
    ],
)
def test_experts_become_one_call(activation: Activation, name: str, gated: bool) -> None:
    captured = captured_bits(Experts(activation, gated))
    found = targets(captured)
    assert found.count(TARGET) == 1
    left = {"aten.linear", "aten.softmax", "aten.topk"}
    assert {target.rsplit(".", 1)[0] for target in found} - {"tensoropt.routed_experts"} == left
    (call,) = [n for n in captured.graph_module.graph.nodes if target_name(n) == TARGET]
    assert call.args[5:] == ("transformers::grouped_mm_fallback", name, gated, True)


@pytest.mark.parametrize(
    "changed", ["halves", "descending", "bins", "tokens", "norm", "inverse", "mean", "dtype"]
)
def test_what_is_written_in_another_way_stays(changed: str) -> None:
    found = targets(captured_bits(Experts(changed=changed)))
    assert TARGET not in found
    assert found.count("transformers.grouped_mm_fallback.default") == 2


@pytest.mark.parametrize("activation", [torch.tanh, partial(F.leaky_relu, negative_slope=0.2)])
def test_other_activations_stay(activation: Any) -> None:
    assert TARGET not in targets(captured_bits(Experts(activation)))


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_models_have_no_grouped_products_left(name: str) -> None:
    torch.set_num_threads(1)
    example = make(name)
    captured = capture(example.model, example.args, **example.keywords)
    found = targets(captured)
    assert found.count(TARGET) == 2  # layers
    assert not [target for target in found if "grouped_mm" in target or "sort" in target]
    assert differing_bits(example, captured) == []
