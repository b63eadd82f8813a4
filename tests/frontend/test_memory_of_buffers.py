"""Calls with ``out=``, buffers that get new tensors, and other memory for tensors of a module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.passes import out_arguments
from tests.frontend.graphs import Body, check_after_every_pass, normalised, targets
from tests.frontend.training import Layer, train_captured, train_module


def one_out(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    with torch.no_grad():
        total = torch.zeros_like(hidden)
        same = torch.add(hidden, x, alpha=2, out=total)
        same.mul_(2)
    return (hidden * total).sum()


def several_outs(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    with torch.no_grad():
        values, places = hidden.new_empty(0), torch.empty(0, dtype=torch.long)
        values, places = torch.zeros_like(hidden[0]), torch.zeros_like(hidden[0]).long()
        torch.max(hidden, 0, out=(values, places))
    return (hidden * values).sum() + hidden.gather(0, places[None]).sum()


def of_a_cast(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    with torch.no_grad():
        wide = torch.zeros(x.shape, dtype=torch.float64)
        torch.exp(x, out=wide)
    return (hidden * wide.to(x.dtype)).sum()


@pytest.mark.parametrize("body", [one_out, several_outs, of_a_cast])
def test_out_calls_become_functional(body: Body) -> None:
    _, module = normalised(body)
    out_arguments.make_out_calls_functional(module.graph)
    check_after_every_pass(body)
    _, module = normalised(body, *_all_passes())
    assert not any("out" in name.rpartition(".")[2] for name in targets(module))


def _all_passes() -> Any:
    from tensoropt_torch.frontend.passes import PASSES

    return PASSES


class Buffers(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("same", self.scale)
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(self, x)
        return result


def other_size(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    self.scale = self.same = torch.cat([self.scale, x.detach().sum(0)])
    return self.linear(x).sum()


def one_name_only(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    self.scale = self.scale * 2
    return (self.linear(x) * self.same).sum()


def parameter_data(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    self.linear.weight.data = self.linear.weight.data * 0.9
    return self.linear(x).sum()


def buffer_data(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    self.scale.data = self.scale.data * 0.9
    return (self.linear(x) * self.scale).sum()


def data_of_a_result(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    y = self.linear(x)
    y.data = y.exp()
    return (y * y).sum()


def data_of_a_result_in_place(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    y = self.linear(x)
    y.data.mul_(2)
    return (y * y).sum()


def data_of_a_parameter_in_place(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    self.linear.weight.data.clamp_(-1, 1)
    return self.linear(x).sum()


def gradient(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    y = self.linear(x)
    (slope,) = torch.autograd.grad(y.sum(), y, create_graph=True)
    return (y + slope).sum()


def backward(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    self.linear(x).sum().backward()
    return self.linear(x).sum()


def gradient_of_a_function(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    slope = torch.func.grad(lambda y: self.linear(y).sum())(x)
    return (self.linear(x) * slope).sum()


def other_out(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        torch.mul(x, 2, out=torch.empty(1))
    return self.linear(x).sum()


REFUSED = {
    other_size: "a buffer has to keep its size",
    one_name_only: "'same', which was the same buffer, keeps the old one",
    parameter_data: r"sets .data of parameter 'linear.weight' \(at .*data = self.linear.*0.9\)",
    buffer_data: r"sets .data of buffer 'scale' .*; assign a new tensor",
    data_of_a_result: r"sets .data of a tensor \(at .*: y.data = y.exp\(\)\); .* go on with a new",
    data_of_a_result_in_place: r"mul_.* in place, without its gradient; .*; at File .*in forward",
    data_of_a_parameter_in_place: r"clamp_.* an input or a parameter; .*; at File .*in forward",
    gradient: r"calls torch.autograd.grad \(at .*: \(slope,\) = torch.*; .* in the training loop",
    backward: r"calls backward \(at .*: self.linear\(x\).sum\(\).backward\(\)\); a captured",
    gradient_of_a_function: r"calls torch.autograd.grad \(at .*: slope = torch.func.grad.*in the t",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_a_graph_cannot_say_is_refused(body: Any) -> None:
    with pytest.raises(TensorOptError, match=REFUSED[body]):
        capture(Buffers(body), (torch.randn(2, 4),))


def reads_data(self: Buffers, x: torch.Tensor) -> torch.Tensor:
    y = self.linear(x)
    self.scale.data.mul_(0.5)
    self.scale.data.add_(y.data.mean(0))
    centred = y - y.data.mean() * self.linear.weight.data.sum()
    return (centred * centred * self.scale).sum()


def test_data_that_is_read_has_its_values_and_no_gradient() -> None:
    model, x = Buffers(reads_data), torch.randn(2, 4)
    captured = capture(model, (x,))
    outputs, gradients = train_captured(model, captured, (x,))
    scale = captured.constants["scale"].clone()
    with torch.no_grad():
        model.scale.fill_(1)
    expected, expected_gradients = train_module(model, (x,))
    torch.testing.assert_close(outputs[0], expected[0])
    torch.testing.assert_close(scale, model.scale)
    torch.testing.assert_close(gradients, expected_gradients)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_out_of_another_size_is_refused() -> None:
    with pytest.raises(TensorOptError):
        capture(Buffers(other_out), (torch.randn(2, 4),))
