"""What trials say of calls of Python, and rules that users register for Functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function

import tensoropt_torch
from tensoropt_torch import TensorOptError, register_rule, unregister_rule
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.frontend.python_calls import Proof, is_python_call, proof_of
from tests.distributed.python_functions import ByValue, Inject, Nearest, NormClip, Reverse, Round

ROWS, WIDTH = 16, 8


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Model(nn.Module):
    def __init__(self, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.one, self.table = nn.Parameter(torch.rand(())), nn.Parameter(torch.rand(6, WIDTH))
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self, self.layer(x)).sum()


def captured_call(call: Callable[..., torch.Tensor]) -> CapturedModel:
    return capture(Model(call), (torch.randn(ROWS, WIDTH),))


def proof(call: Callable[..., torch.Tensor]) -> Proof:
    graph = captured_call(call).graph_module.graph
    (name,) = {str(node.target) for node in graph.nodes if is_python_call(node)}
    found = proof_of(name)
    assert found is not None
    return found


class MeanOverRows(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class RareNormClip(Function):
    """Shows for large gradients only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * (1e5 / g.norm()).clamp(max=1)


class RowNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x / x.norm(dim=-1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g / x.norm(dim=-1, keepdim=True)


class Nothing(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 0

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 0


class OfRows(Function):
    """Knows how many rows there are."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: int) -> torch.Tensor:
        return x.view(rows, -1).sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g, None


class Add(Function):
    """Each operand twice, whatever autograd would say."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return 2 * g, 2 * g.sum(0)


@pytest.mark.parametrize(
    ("call", "rule", "linear"),
    [
        (lambda m, h: Reverse.apply(h), "d0 d1 -> d0 d1", True),
        (lambda m, h: Round.apply(h, 4), "d0 d1 -> d0 d1", True),
        (lambda m, h: RowNorm.apply(h), "n _ -> n _", True),
        (lambda m, h: Nearest.apply(h, m.table)[0], "n _, _ _ -> n _, n", True),
        (lambda m, h: Add.apply(h, m.table[0]), "n _, _ -> n _", True),
    ],
)
def test_what_works_by_rows_or_elements_gets_a_rule(
    call: Callable[..., torch.Tensor], rule: str, linear: bool
) -> None:
    found = proof(call)
    assert (found.rule, found.linear) == (rule, linear), found.reason


@pytest.mark.parametrize(
    ("call", "reason", "linear"),
    [
        (lambda m, h: MeanOverRows.apply(h), "output 0 is another", True),
        (lambda m, h: NormClip.apply(h), "the gradient of tensor 0 is another", False),
        (lambda m, h: RareNormClip.apply(h), "the gradient of tensor 0 is another", False),
        (lambda m, h: ByValue.apply(h, [h.sin(), h.cos()]), "gradient of tensor 0", False),
        (lambda m, h: Inject.apply(h, m.one, 0.5), "the gradient of tensor 1 is another", False),
        (lambda m, h: Nothing.apply(h), "zero or not finite in all trials", True),
        (lambda m, h: OfRows.apply(h, ROWS), "cannot run", True),
    ],
)
def test_what_does_not_stays_whole(
    call: Callable[..., torch.Tensor], reason: str, linear: bool
) -> None:
    found = proof(call)
    assert found.rule == "" and reason in found.reason and found.linear == linear, found


def test_it_is_explained_and_warned_of() -> None:
    def call(m: Model, h: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Reverse.apply(MeanOverRows.apply(h))
        return made

    x = torch.randn(ROWS, WIDTH)
    with pytest.warns(UserWarning, match="runs whole.*'MeanOverRows'; it does not work row by row"):
        explanation = tensoropt_torch.explain(Model(call), (x,), cluster="cpu", num_devices=2)
    nodes = {node.name.split("_")[0]: node for node in explanation.nodes}
    assert "element by element" in nodes["reverse"].rule_from
    assert "it does not work row by row" in nodes["mean"].left_out[0].text


def test_a_registered_rule_counts_for_every_call_of_the_function() -> None:
    register_rule(OfRows, "n _ -> n _", flops=3)
    try:
        found = proof(lambda m, h: OfRows.apply(h, ROWS))
        assert found.rule == "n _ -> n _" and found.reason == "registered"
        captured = captured_call(lambda m, h: OfRows.apply(h, ROWS))
        assert any("OfRows" in text for text in captured.declarations)
    finally:
        unregister_rule(OfRows)
    assert proof(lambda m, h: OfRows.apply(h, ROWS)).rule == ""


def test_a_registered_rule_is_checked_on_its_example() -> None:
    x, y = torch.randn(24, 12, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    register_rule(Add, "n k, k -> n k", example=(x, y))
    assert proof(lambda m, h: Add.apply(h, m.table[0])).rule == "n k, k -> n k"
    unregister_rule(Add)
    with pytest.raises(TensorOptError, match="does not compute"):
        register_rule(MeanOverRows, "n k -> n k", example=(x,))
    assert proof(lambda m, h: MeanOverRows.apply(h)).reason != "registered"
    with pytest.raises(TensorOptError, match="no rule was registered for MeanOverRows"):
        unregister_rule(MeanOverRows)
