"""Stacks of recurrent layers become calls of one layer, with equal numbers."""

from typing import Any

import pytest
import torch
from torch import fx, nn

from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.capture import CapturedModel

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias, batch first": {"bias": False, "batch_first": True},
    "bidirectional": {"bidirectional": True},
    "bidirectional, batch first": {"bidirectional": True, "batch_first": True},
    "dropout": {"dropout": 0.5},
}


class Model(nn.Module):
    """All results of a stack of 2 layers."""

    def __init__(self, cell: str, **options: Any) -> None:
        super().__init__()
        self.stack = CELLS[cell](6, 4, 2, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, last = self.stack(x)
        states = last if isinstance(last, tuple) else (last,)
        return output.square().sum() + sum((i + 2.0) * s.sin().sum() for i, s in enumerate(states))


def loss_and_gradients(loss: torch.Tensor, model: nn.Module) -> list[torch.Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def run_captured(captured: CapturedModel, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    known = {**captured.constants, **dict(model.named_parameters())}
    result = captured.graph_module(*values_of(captured, known, x))
    return result[0] if isinstance(result, (tuple, list)) else result


def values_of(
    captured: CapturedModel, known: dict[str, torch.Tensor], x: torch.Tensor
) -> list[torch.Tensor]:
    """Of the sources of a graph, in the shapes that it takes."""
    return [source.as_seen(known.get(source.names[0], x)) for source in captured.sources]


def calls(captured: CapturedModel, cell: str) -> int:
    nodes = captured.graph_module.graph.nodes
    return sum(str(node.target) in (f"aten.{cell}.input", by_gates(cell)) for node in nodes)


def by_gates(cell: str) -> str:
    return f"tensoropt.{cell}.default"


@pytest.mark.parametrize("cell", list(CELLS))
@pytest.mark.parametrize("options", list(OPTIONS))
def test_numbers_are_those_of_the_stack(cell: str, options: str) -> None:
    torch.manual_seed(0)
    model = Model(cell, **OPTIONS[options]).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    captured = capture(model, (x,))
    assert calls(captured, cell) == (4 if "bidirectional" in options else 2)
    torch.manual_seed(1)
    expected = loss_and_gradients(model(x), model)
    torch.manual_seed(1)
    found = loss_and_gradients(run_captured(captured, model, x), model)
    for got, wanted in zip(found, expected, strict=True):  # sums may go in another order
        torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-13)


class States(fx.Interpreter):
    """Sees the states that cells start from."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: list[torch.Tensor] = []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if str(target) in map(by_gates, CELLS):
            self.seen += args[1 : 3 if str(target) == by_gates("lstm") else 2]
        return super().call_function(target, args, kwargs)


@pytest.mark.parametrize("cell", list(CELLS))
def test_states_of_zeros_are_what_cudnn_takes(cell: str) -> None:
    model = Model(cell)
    captured = capture(model, (torch.randn(3, 5, 6),))
    known = {**captured.constants, **dict(model.named_parameters())}
    states = States(captured.graph_module)
    states.run(*values_of(captured, known, torch.randn(3, 5, 6)))
    assert len(states.seen) == (4 if cell == "lstm" else 2)
    assert all(state.is_contiguous() and state.shape == (1, 5, 4) for state in states.seen)


def test_projections_and_eval_mode_stay_right() -> None:
    model = Model("lstm", proj_size=3, dropout=0.5).eval()
    x = torch.randn(5, 3, 6)
    captured = capture(model, (x,))
    assert calls(captured, "lstm") == 2
    assert torch.equal(run_captured(captured, model, x), model(x))


def test_large_layers_are_captured_without_memory() -> None:
    with torch.device("meta"):
        model = Model("lstm", batch_first=True)
        model.stack = nn.LSTM(1 << 15, 1 << 15, 3, batch_first=True)
        captured = capture(model, (torch.empty(64, 20, 1 << 15),))
    assert calls(captured, "lstm") == 3
