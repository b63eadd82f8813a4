"""Running a captured or exported graph next to the module it came from."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend import CapturedModel

Result = tuple[list[Any], dict[str, torch.Tensor]]  # outputs, gradients by name


def run_graph(module: fx.GraphModule, values: Sequence[Any]) -> list[Any]:
    """The outputs of a graph whose placeholders take ``values``."""
    interpreter = fx.Interpreter(module)
    return list(interpreter.run(*values, enable_io_processing=False))


def train_graph(module: nn.Module, graph: fx.GraphModule, values: list[Any]) -> Result:
    """Outputs and gradients of the parameters of ``module`` among ``values``."""
    torch.manual_seed(0)
    return _result(module, run_graph(graph, values))


def train_captured(
    model: nn.Module,
    captured: CapturedModel,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Result:
    """As ``train_graph``, with the model's own parameters and buffers."""
    inputs = iter(pytree.tree_leaves((args, dict(kwargs or {}))))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    values = [
        next(inputs)
        if source.kind in ("input", "literal")
        else source.as_seen({**captured.constants, **parameters}[source.names[0]])
        for source in captured.sources
    ]
    return train_graph(model, captured.graph_module, values)


def train_module(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Result:
    """The module itself."""
    torch.manual_seed(0)
    return _result(model, pytree.tree_leaves(model(*args, **(kwargs or {}))))


def _result(model: nn.Module, outputs: list[Any]) -> Result:
    model.zero_grad()
    trained = [
        output.sum()
        for output in outputs
        if isinstance(output, torch.Tensor) and output.requires_grad
    ]
    if trained:
        torch.stack([total.double() for total in trained]).sum().backward()
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return outputs, gradients


def assert_bit_equal(actual: Result, expected: Result) -> None:
    """Outputs and gradients are the same bits."""
    for got, wanted in zip(actual[0], expected[0], strict=True):
        if not isinstance(wanted, torch.Tensor):
            assert got == wanted
            continue
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(
            actual[1][name], gradient, rtol=0, atol=0, msg=f"gradient of {name}"
        )


class Layer(nn.Module):
    """A linear layer, a buffer, and a forward pass written in the test: ``body``,
    or a subclass."""

    def __init__(self, body: Any = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))
        self._body = body

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._body(self, *args, **kwargs)


def batch(seed: int = 0) -> torch.Tensor:
    """Inputs for ``Layer``."""
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(seed))


def scaled(self: Layer, x: torch.Tensor, scale: Any = 1.0, mode: str | None = None) -> torch.Tensor:
    """A body with arguments that need not be given."""
    hidden = self.linear(x) * scale
    return hidden.sum() if mode == "sum" else hidden.mean()


def assert_close(actual: Result, expected: Result) -> None:
    """Outputs are the same bits, gradients but for rounding."""
    assert_bit_equal((actual[0], {}), (expected[0], {}))
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-5, atol=1e-7)
