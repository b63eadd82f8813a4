"""Numbers that follow from other numbers, as a program computes them: so for other values too."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

Key = Hashable  # of a number that is given
Values = Mapping[Any, Any]  # by key

BINARY: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
}
UNARY: dict[str, Callable[..., Any]] = {name: getattr(operator, name) for name in ("neg", "pos")}
COMPARISONS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
MATH: dict[str, Callable[..., Any]] = {
    f"math.{name}": getattr(math, name)
    for name in ("cos", "sin", "tan", "tanh", "exp", "log", "log2", "log10", "sqrt", "pow")
}
_QUESTIONS: dict[str, Callable[..., Any]] = {
    "bool": bool,
    "float": float,
    "int": int,
    "value": lambda value: value,
    "round": round,
    "floor": math.floor,
    "ceil": math.ceil,
    "abs": abs,
    "divmod": divmod,
    "len": len,
    "contains": operator.contains,
    "startswith": str.startswith,
    "endswith": str.endswith,
}
_FUNCTIONS = BINARY | UNARY | COMPARISONS | MATH | _QUESTIONS


@dataclass(frozen=True)
class Expression:
    """A function of ``operands``: expressions or plain numbers. Without a function it is the
    number that is given as ``key``."""

    function: str
    operands: tuple[Any, ...] = ()
    key: Key = None

    def of(self, values: Values) -> Any:
        """What it is for these numbers."""
        if not self.function:
            return values[self.key]
        found = (o.of(values) if isinstance(o, Expression) else o for o in self.operands)
        return _FUNCTIONS[self.function](*found)


def given(key: Key) -> Expression:
    """A number that is given."""
    return Expression("", key=key)


def alike(one: Any, other: Any) -> bool:
    """Whether two plain numbers are the same, bit for bit and in type."""
    return type(one) is type(other) and repr(one) == repr(other)


@dataclass(frozen=True)
class Guard:
    """What the program has found out about numbers, on which it may depend what it does."""

    asked: Expression
    answer: str  # of which type, and the number

    @staticmethod
    def of(asked: Expression, answer: Any) -> Guard:
        return Guard(asked, _text(answer))

    def holds(self, values: Values) -> bool:
        """Whether it is the same for these numbers."""
        try:
            return _text(self.asked.of(values)) == self.answer
        except (ArithmeticError, TypeError, ValueError):
            return False


def _text(answer: Any) -> str:
    return f"{type(answer).__name__} {answer!r}"
