"""Numbers that become inputs of a captured graph, against captures of their values."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.frontend.capture import capture_with_numbers
from tensoropt_torch.frontend.watching import Place, UnfollowableError
from tensoropt_torch.frontend.watching.expressions import Expression, alike, given
from tensoropt_torch.frontend.watching.numbers import NumberTrace

Function = Callable[[Any], Any]
OPERATIONS: tuple[Callable[[random.Random, Any], Any], ...] = (
    lambda r, n: n + r.choice([1, 0.5, -3]),
    lambda r, n: r.choice([2, 0.25, 7.5]) - n,
    lambda r, n: n * r.choice([3, 0.125, -1.5]),
    lambda r, n: n / r.choice([4, 3.0]),
    lambda r, n: r.choice([1, 2.5]) / (n * n + 1),
    lambda r, n: n // r.choice([2, 3]),
    lambda r, n: n % r.choice([5, 2.5]),
    lambda r, n: (n * 0.01) ** r.choice([2, 3]),
    lambda r, n: -n,
    lambda r, n: abs(n),
    lambda r, n: min(n, r.choice([2, 10])),
    lambda r, n: max(n, r.choice([-1, 1.5])),
    lambda r, n: math.cos(n * 0.1),
    lambda r, n: n if n < r.choice([1, 4, 20]) else n * 0.5,
    lambda r, n: round(n) + n,
    lambda r, n: int(n) * 0.5,
    lambda r, n: n + (1 if n else 2),
)


def expression(seed: int) -> Function:
    """A random function of a number."""

    def function(number: Any) -> Any:
        source = random.Random(seed)
        value = number
        for _ in range(source.randint(1, 5)):
            value = source.choice(OPERATIONS)(source, value)
        return value

    return function


class Layer(nn.Module):
    """Uses a function of a number among its arguments, and of one of its attributes."""

    def __init__(self, function: Function, use: Callable[[torch.Tensor, Any], torch.Tensor]):
        super().__init__()
        self.function, self.use = function, use
        self.weight = nn.Parameter(torch.ones(4))
        self.scale = 1.0

    def forward(self, x: torch.Tensor, number: Any = 0.0) -> torch.Tensor:
        return self.use(x * self.weight, self.function(number)).sum() * self.scale


def multiplied(x: torch.Tensor, number: Any) -> torch.Tensor:
    result: torch.Tensor = x * number + number
    return result


def graph_of(function: Function, value: Any, use: Any = multiplied) -> CapturedModel:
    """The graph that takes the number as an input."""
    model = Layer(function, use)
    keywords = {"number": value}
    plain = capture(model, (torch.ones(4),), keywords)
    return capture_with_numbers(model, (torch.ones(4),), keywords, plain, [1])


def literals(captured: CapturedModel, values: Any = None) -> list[str]:
    """The calls, with numbers in the places of their marks."""
    numbers = captured.numbers
    found = () if values is None or numbers is None else numbers.of(values)
    texts = []
    for node in captured.graph_module.graph.nodes:
        if node.op == "placeholder":
            continue
        text = f"{node.target}{node.args}{node.kwargs}"
        if numbers is not None:
            for mark, number in zip(numbers.marks, found, strict=False):
                text = text.replace(repr(mark), repr(number))
        texts.append(re.sub(r"args_\d+", "input", text))
    return texts


@pytest.mark.parametrize("seed", range(24))
def test_numbers_give_what_a_capture_of_their_value_gives(seed: int) -> None:
    source = random.Random(seed)
    function = expression(seed)
    is_whole = source.random() < 0.5
    values = [source.randint(0, 30) if is_whole else source.uniform(-3, 30) for _ in range(6)]
    try:
        captured = graph_of(function, values[0])
    except UnfollowableError as reason:
        pytest.skip(f"is fixed: {reason}")
    assert captured.numbers is not None
    held = 0
    for value in values:
        if captured.numbers.hold_for({1: value}):
            held += 1
            expected = capture(Layer(function, multiplied), (torch.ones(4),), {"number": value})
            assert literals(captured, {1: value}) == literals(expected), (seed, value)
    assert held > 0, seed  # its own at least


def test_comparison_is_a_guard() -> None:
    captured = graph_of(lambda n: 0.0 if n < 3 else 1.0, 1)
    assert captured.numbers is not None
    assert captured.numbers.marks == ()
    assert [captured.numbers.hold_for({1: n}) for n in (0, 2, 3, 40)] == [True, True, False, False]


@pytest.mark.parametrize(
    "use",
    [
        lambda x, n: x[: int(n)],
        lambda x, n: x * float(n),
        lambda x, n: torch.arange(0, n).sum() * x,
        lambda x, n: x * len(range(n)),
        lambda x, n: x * torch.zeros(n).numel(),
    ],
    ids=["index", "float", "arange", "range", "size"],
)
def test_what_fixes_a_number_is_guarded_or_refused(use: Any) -> None:
    try:
        captured = graph_of(lambda n: n, 2, use)
    except UnfollowableError:
        return
    assert captured.numbers is not None
    assert captured.numbers.hold_for({1: 2})
    assert not captured.numbers.hold_for({1: 3})


@pytest.mark.parametrize(
    ("use", "value"),
    [
        (lambda x, n: F.dropout(x, n), 0.3),
        (lambda x, n: x / n, 1.5),
        (lambda x, n: n / (x + 2), 1.5),
        (lambda x, n: x.clamp(max=n), 0.5),
        (lambda x, n: F.leaky_relu(x, n), 0.1),
        (lambda x, n: torch.full_like(x, n) * x, 3.0),
        (lambda x, n: torch.where(x > n, x, n), 0.1),
        (lambda x, n: torch.add(x, x, alpha=n), 0.7),
        (lambda x, n: x.lerp(x * 2, n), 0.7),
        (lambda x, n: x**n, 3),
    ],
)
def test_operators_take_numbers(use: Any, value: Any) -> None:
    captured = graph_of(lambda n: n, value, use)
    assert captured.numbers is not None
    assert len(captured.numbers.marks) >= 1


def test_constant_that_depends_on_a_number_is_refused() -> None:
    def use(x: torch.Tensor, n: Any) -> torch.Tensor:
        result: torch.Tensor = x * (torch.arange(4.0) * n)
        return result

    with pytest.raises(UnfollowableError, match="constant"):
        graph_of(lambda n: n, 0.5, use)


def test_attributes_are_followed() -> None:
    model = Layer(lambda n: n, multiplied)
    plain = capture(model, (torch.ones(4),))
    place = Place("", "scale")
    captured = capture_with_numbers(model, (torch.ones(4),), {}, plain, [place])
    assert captured.numbers is not None
    assert captured.numbers.of({place: 4.0}) == (4.0,)
    assert model.scale == 1.0


def test_number_is_a_float_for_those_who_ask() -> None:
    trace = NumberTrace()
    number = trace.follow(0, 0.5)
    assert isinstance(number, float) and not isinstance(number, int)
    assert f"{number:.2f}" == "0.50"
    assert math.floor(number) == 0 and number > 0.25 and {number: 1}[0.5] == 1
    assert all(guard.holds({0: 0.5}) for guard in trace.guards)


def test_expressions_keep_types_and_signs() -> None:
    half = Expression("truediv", (given("n"), 2))
    assert alike(half.of({"n": 3}), 1.5)
    assert not alike(0.0, -0.0) and not alike(1, 1.0)
