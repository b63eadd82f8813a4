"""The comparison with one process sees a small gradient that is wrong, and no rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.distributed.parity import Trace, differences, train_alone
from tests.distributed.scales import Moved

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


class Routed(nn.Module):
    """Attention, whose key bias has a gradient that is zero but for rounding, and a router whose
    gradient is a ten thousandth of the largest one."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.router = nn.Linear(8, 4)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """(b, s, 8) features and (b, s) classes -> the loss."""
        mixed = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        gates = self.router(x).softmax(-1)[..., :1]
        return F.cross_entropy(self.head(mixed * (1 + 1e-4 * gates)).flatten(0, 1), y.flatten())


def routed(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 6, 8, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (8, 6), generator=generator)
    torch.manual_seed(0)
    return Routed().to(dtype), x.to(dtype), y


def trace_of(dtype: torch.dtype) -> Trace:
    model, x, y = routed(dtype)
    return train_alone(model, lambda module: module(x, y), TOLERANCE[dtype])


def scaled(trace: Trace, name: str, factor: float) -> Trace:
    """The same with one other gradient."""
    gradients = {**trace.gradients, name: trace.gradients[name] * factor}
    return replace(trace, gradients=gradients)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_small_gradient_that_is_mostly_wrong_is_seen(dtype: torch.dtype) -> None:
    trace = trace_of(dtype)
    largest = max(float(g.abs().max()) for g in trace.gradients.values())
    assert float(trace.gradients["router.weight"].abs().max()) < 1e-3 * largest
    (found,) = differences(scaled(trace, "router.weight", 0.33), trace, TOLERANCE[dtype])
    assert found.startswith("gradient of 'router.weight' is off by")


def test_a_millionth_is_seen_in_float64() -> None:
    trace = trace_of(torch.float64)
    for name in trace.gradients.keys() - {"key.bias"}:
        (found,) = differences(scaled(trace, name, 1 + 1e-6), trace, 1e-10)
        assert f"'{name}'" in found


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_another_order_of_sums_is_not(dtype: torch.dtype) -> None:
    trace = trace_of(dtype)
    model, x, y = routed(dtype)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3))
    other = train_alone(model, lambda module: module(x[order], y[order]), TOLERANCE[dtype])
    assert not torch.equal(other.gradients["key.bias"], trace.gradients["key.bias"])
    assert list(differences(other, trace, TOLERANCE[dtype])) == []


def test_a_parameter_that_is_small_is_seen() -> None:
    trace = trace_of(torch.float64)
    small = {**trace.parameters, "head.bias": trace.parameters["head.bias"] * (1 + 1e-8)}
    (found,) = differences(replace(trace, parameters=small), trace, 1e-10)
    assert "parameter of 'head.bias'" in found


def test_what_is_missing_is_told() -> None:
    trace = trace_of(torch.float64)
    gradients = {n: g for n, g in trace.gradients.items() if n != "router.bias"}
    (found,) = differences(replace(trace, gradients=gradients), trace, 1e-10)
    assert "gradient of 'router.bias'" in found


def test_masks_and_complex_numbers_are_compared() -> None:
    """A mask has no differences of its own type, and a complex number two parts."""
    values = {"mask": torch.tensor([True, False]), "root": torch.tensor([1j, 1 + 1j])}
    one = Moved(values, dict.fromkeys(values, 0.0), 1e-6)
    assert list(one.differences(values)) == []
    (found,) = one.differences({**values, "mask": torch.tensor([True, True])})
    assert found == "mask is off by 1; its largest element is 1"
    (found,) = one.differences({**values, "root": torch.tensor([2j, 1 + 1j])})
    assert found.startswith("root is off by 1;")


def test_another_shape_is_a_difference() -> None:
    one = Moved({"x": torch.ones(2)}, {"x": 0.0}, 1e-6)
    (found,) = one.differences({"x": torch.ones(1)})
    assert found.startswith("x is off by inf")
