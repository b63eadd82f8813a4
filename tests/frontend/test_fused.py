"""Parameters that hold several of a kind are seen block by block, with the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tensoropt_torch.frontend import Blocks, CallForm, CapturedModel, ModelStructure, capture
from tensoropt_torch.frontend.passes import target_name
from tests.distributed.fused_models import (
    Attention,
    Fused,
    Gated,
    Heads,
    Multihead,
    Transposed,
    by_chunk,
    by_index,
    by_slice,
    by_split,
    by_unbind,
    heads_outermost,
)
from tests.frontend.training import assert_bit_equal, assert_close, train_captured, train_module

ROWS, COLUMNS = Blocks(0, 3), Blocks(1, 3)
WITH_BIAS = {"qkv.weight": ROWS, "qkv.bias": ROWS}
OF_PYTORCH = {"attention.in_proj_weight": ROWS, "attention.in_proj_bias": ROWS}


def clamped(y: torch.Tensor, heads: int) -> Heads:
    return by_chunk(y.clamp(-0.5, 0.5), heads)


def of(how: Callable[[torch.Tensor, int], Heads], bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: Attention(nn.Linear(32, 96, bias=bias), how)


SEEN: dict[str, tuple[Callable[[], nn.Module], dict[str, Blocks]]] = {
    "split": (of(by_split), WITH_BIAS),
    "chunk": (of(by_chunk), WITH_BIAS),
    "slices": (of(by_slice), WITH_BIAS),
    "unbind": (of(by_unbind), WITH_BIAS),
    "index": (of(by_index), WITH_BIAS),
    "clamped": (of(clamped), WITH_BIAS),
    "no bias": (of(by_split, bias=False), {"qkv.weight": ROWS}),
    "transposed": (
        lambda: Attention(Transposed(32, 96), by_split),
        {"qkv.weight": COLUMNS, "qkv.bias": ROWS},
    ),
    "gated": (Gated, {"gate_up.weight": Blocks(0, 2)}),
    "attention to itself": (Multihead, OF_PYTORCH),
    "attention to keys with values": (lambda: Multihead(others=1), OF_PYTORCH),
    "attention to keys and values": (lambda: Multihead(others=2), OF_PYTORCH),
}

# Gradients of heads come back without a copy, so that biases sum them in another order.
OTHER_SUMS = ("attention to keys with values", "attention to keys and values")


def captured_layer(model: nn.Module, x: torch.Tensor) -> CapturedModel:
    return capture(Fused(model), (x,))


def equal_blocks(captured: CapturedModel, expected: dict[str, Blocks]) -> bool:
    return captured.blocks == {f"layers.0.{name}": blocks for name, blocks in expected.items()}


@pytest.mark.parametrize("name", SEEN)
def test_blocks_are_seen_with_the_same_bits(name: str) -> None:
    torch.manual_seed(0)
    make, expected = SEEN[name]
    model, x = make(), torch.randn(2, 8, 32)
    captured = captured_layer(model, x)
    assert equal_blocks(captured, expected)
    whole = Fused(model)
    check = assert_close if name in OTHER_SUMS else assert_bit_equal
    check(train_captured(whole, captured, (x,)), train_module(whole, (x,)))


def with_all_of_it(y: torch.Tensor, heads: int) -> Heads:
    q, k, v = by_chunk(y, heads)
    return q, k, v + y.sum()


def unequal(y: torch.Tensor, heads: int) -> Heads:
    """Two heads of keys and values for four of queries."""
    q, k, v = y.split([32, 16, 16], dim=-1)
    size = 32 // heads
    k, v = (x.unflatten(-1, (2, size)).transpose(1, 2).repeat_interleave(2, 1) for x in (k, v))
    return q.unflatten(-1, (heads, size)).transpose(1, 2), k, v


class Twice(nn.Module):
    """The weight of a layer has a use of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention(nn.Linear(32, 96), by_split)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.inner.qkv.weight
        assert isinstance(weight, torch.Tensor)
        out: torch.Tensor = self.inner(x) + weight.sum()
        return out


LEFT: dict[str, Callable[[], nn.Module]] = {
    "heads outermost": of(heads_outermost),
    "another use": of(with_all_of_it),
    "unequal blocks": lambda: Attention(nn.Linear(32, 64), unequal),
    "another use of the weight": Twice,
    "heads of one kind": lambda: nn.Sequential(
        nn.Linear(32, 32), nn.Unflatten(-1, (4, 8)), nn.Flatten(2)
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_parameters_stay_as_they_are(name: str) -> None:
    torch.manual_seed(0)
    model, x = LEFT[name](), torch.randn(2, 8, 32)
    captured = captured_layer(model, x)
    assert captured.blocks == {}
    calls = {target_name(node) for node in captured.graph_module.graph.nodes}
    assert "tensoropt.linear_blocks.default" not in calls
    whole = Fused(model)
    assert_bit_equal(train_captured(whole, captured, (x,)), train_module(whole, (x,)))


@pytest.mark.parametrize(
    "blocks",
    [{}, {"layers.0.qkv.weight": ROWS}, {"layers.0.qkv.weight": Blocks(0, 6)}],
    ids=["none", "one of two", "others"],
)
def test_a_structure_sees_the_blocks_that_it_is_told(blocks: dict[str, Blocks]) -> None:
    """Also where the graph would see none, or others."""
    torch.manual_seed(0)
    model, x = Fused(Attention(nn.Linear(32, 96), by_split)), torch.randn(2, 8, 32)
    structure = ModelStructure(model, CallForm(1), blocks)
    captured = structure.capture(
        ((x,), {}), structure.modes, structure.trained, capture(model, (x,)).context
    )
    assert captured.blocks == blocks
    assert_bit_equal(train_captured(model, captured, (x,)), train_module(model, (x,)))


def test_blocks_are_apart_and_together() -> None:
    assert Blocks(1, 3).apart((4, 12, 5)) == (4, 3, 4, 5)
    assert Blocks(1, 3).together((4, 3, 2, 5)) == (4, 6, 5)


def test_layouts_are_named_by_dims_of_the_parameter() -> None:
    rows, columns = Blocks(0, 3), Blocks(1, 2)
    assert rows.label("S0,S1,S2,R") == "S0,S0/3,S1,R"
    assert columns.label("S0,S1,S2") == "S0,S1,S1/2"
