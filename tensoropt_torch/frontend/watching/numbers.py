"""Numbers that are followed through a forward pass, so that a graph can take them as inputs.

A followed number takes its own value wherever Python asks for it, which is noted as a guard. Calls
of PyTorch get another number, its mark, in its place. Where a captured graph has the mark, the
graph depends on the number there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend.watching.expressions import (
    BINARY,
    COMPARISONS,
    MATH,
    UNARY,
    Expression,
    Guard,
    Key,
    alike,
    given,
)
from tensoropt_torch.frontend.watching.followed_texts import Text

# Calls whose result has the same size whatever the number is, and which take it as it is.
_FOLLOWED = frozenset(  # words, a line for each sort
    """
    add sub rsub mul div true_divide rdiv rtruediv truediv pow rpow float_power remainder fmod
    radd rmul
    full full_like fill masked_fill where lerp addcmul addcdiv clamp clamp_min clamp_max
    gt lt ge le eq ne
    dropout alpha_dropout feature_dropout feature_alpha_dropout bernoulli
    cross_entropy_loss smooth_l1_loss huber_loss hinge_embedding_loss margin_ranking_loss
    leaky_relu elu celu hardtanh threshold softplus softshrink hardshrink
    batch_norm layer_norm group_norm instance_norm scaled_dot_product_attention
    """.split()  # noqa: SIM905
)


class UnfollowableError(Exception):
    """The graph depends on a number in a way that cannot be told."""


class NumberTrace:
    """What a forward pass does with numbers.

    Attributes:
        found: all numbers that follow from the given ones.
        guards: what it depends on besides.
    """

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.guards: dict[Guard, None] = {}

    def follow(self, key: Key, value: Any) -> Any:
        """A number or text that is followed, ``value`` as seen by the program."""
        if type(value) is str:
            return Text(self, given(key), value)
        return self._number(given(key), value, _mark(key, value))

    def derived(self, function: Callable[..., Any], name: str, operands: Sequence[Any]) -> Any:
        """A number that follows from others."""
        value = function(*map(value_of, operands))
        try:
            mark = function(*map(_mark_of, operands))
        except (ArithmeticError, ValueError) as error:
            raise UnfollowableError(f"{name} of the mark of a number") from error
        expression = Expression(name, tuple(map(_expression_of, operands)))
        if type(value) not in (int, float) or type(mark) is not type(value) or alike(value, mark):
            return self.note(expression, value)
        return self._number(expression, value, mark)

    def asked(self, name: str, operands: Sequence[Any], value: Any) -> Any:
        """What the program asks about numbers; the value is its answer."""
        return self.note(Expression(name, tuple(map(_expression_of, operands))), value)

    def note(self, expression: Expression, value: Any) -> Any:
        """The graph is for calls in which the expression is this, which is returned."""
        self.guards[Guard.of(expression, value)] = None
        return value

    def _number(self, expression: Expression, value: Any, mark: Any) -> Any:
        number = _Number(self, expression, value, mark)
        self.found.append(number)
        return number

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile functions of ``math`` follow numbers, too."""
        with ExitStack() as stack:
            for name, function in MATH.items():
                short = name.removeprefix("math.")
                stack.enter_context(patch.object(math, short, self._following(name, function)))
            yield

    def _following(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def following(*args: Any) -> Any:
            if any(type(arg) is _Number for arg in args):
                return self.derived(function, name, args)
            return function(*args)

        return following


class _Number:
    """A number of type ``int`` or ``float`` for those who ask."""

    def __init__(self, trace: NumberTrace, expression: Expression, value: Any, mark: Any) -> None:
        self.trace, self.expression, self.value, self.mark = trace, expression, value, mark

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.value)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = str(getattr(func, "__name__", "")).strip("_")

        def given_to(value: Any) -> Any:
            if type(value) is not _Number:
                return value
            return value.mark if name in _FOLLOWED else value._ask("value", value.value)

        args, kwargs = pytree.tree_map(given_to, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _ask(self, name: str, value: Any) -> Any:
        return self.trace.asked(name, (self,), value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ask("value", self.value), name)

    def __bool__(self) -> bool:
        return bool(self._ask("bool", bool(self.value)))

    def __float__(self) -> float:
        return float(self._ask("float", float(self.value)))

    def __int__(self) -> int:
        return int(self._ask("int", int(self.value)))

    __trunc__ = __int__

    def __index__(self) -> int:
        return self._ask("value", self.value).__index__()  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return hash(self._ask("value", self.value))

    def __repr__(self) -> str:
        return repr(self._ask("value", self.value))

    def __str__(self) -> str:
        return str(self._ask("value", self.value))

    def __format__(self, spec: str) -> str:
        return format(self._ask("value", self.value), spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._ask("value", self.value).__reduce_ex__(protocol)

    def __floor__(self) -> int:
        return self._ask("floor", math.floor(self.value))  # type: ignore[no-any-return]

    def __ceil__(self) -> int:
        return self._ask("ceil", math.ceil(self.value))  # type: ignore[no-any-return]

    def __round__(self, *digits: Any) -> Any:
        digits = tuple(map(value_of, digits))
        return self.trace.asked("round", (self, *digits), round(self.value, *digits))

    def __abs__(self) -> Any:
        number: Any = self
        return number if number >= 0 else -number

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self


def _is_plain(value: Any) -> bool:
    return type(value) in (int, float, bool, _Number)


def _binary(name: str, function: Callable[..., Any], is_reflected: bool) -> Callable[..., Any]:
    def method(self: _Number, other: Any) -> Any:
        if not _is_plain(other):
            return NotImplemented
        operands = (other, self) if is_reflected else (self, other)
        return self.trace.derived(function, name, operands)

    return method


def _comparison(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: _Number, other: Any) -> Any:
        if not _is_plain(other):
            return NotImplemented
        return self.trace.asked(name, (self, other), function(self.value, value_of(other)))

    return method


def _unary(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: self.trace.derived(function, name, (self,))


for _name, _function in BINARY.items():
    setattr(_Number, f"__{_name}__", _binary(_name, _function, is_reflected=False))
    setattr(_Number, f"__r{_name}__", _binary(_name, _function, is_reflected=True))
for _name, _function in COMPARISONS.items():
    setattr(_Number, f"__{_name}__", _comparison(_name, _function))
for _name, _function in UNARY.items():
    setattr(_Number, f"__{_name}__", _unary(_name, _function))


def value_of(number: Any) -> Any:
    """What a number is for the program."""
    return number.value if type(number) is _Number else number


def _mark_of(number: Any) -> Any:
    return number.mark if type(number) is _Number else number


def _expression_of(number: Any) -> Any:
    return number.expression if type(number) is _Number else number


def _mark(key: Key, value: Any) -> Any:
    """A number that programs do not have, as large as the value, and equal on all ranks."""
    share = random.Random(f"{key} {value!r}").uniform(0.2, 0.8)
    if type(value) is int:
        return value + int(share * 1e6)
    if 0 <= value <= 1 or not math.isfinite(value):
        return share
    return value * (1 + share)


def marks(number: Any) -> tuple[Expression, Any, Any]:
    """What a followed number is: how it is made, its value and its mark."""
    return number.expression, number.value, number.mark


def torch_number(value: torch.SymInt | Any) -> bool:
    """Whether a literal of a graph is a number."""
    return type(value) in (int, float)
