"""Texts among the arguments that are followed through a forward pass, as numbers are: what the
program asks about them is a guard, and a text that it never asks about does not count."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch.utils import _pytree as pytree

from tensoropt_torch.frontend.watching.expressions import Expression


class _Trace(Protocol):
    def note(self, expression: Expression, value: Any) -> Any: ...


class Text:
    """A ``str`` for those who ask. It is none for what is written in C, which reads the memory of
    texts without asking: that fails, and such a text counts whole."""

    def __init__(self, trace: _Trace, expression: Expression, value: str) -> None:
        self._parts = trace, expression, value

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map(_whole, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(_whole(self), name)

    def __bool__(self) -> bool:
        return bool(_asked("bool", (self,), bool(_value(self))))

    def __len__(self) -> int:
        return int(_asked("len", (self,), len(_value(self))))

    def __contains__(self, part: Any) -> bool:
        return bool(_asked("contains", (self, part), _value(part) in _value(self)))

    def startswith(self, *args: Any) -> bool:
        """As of any text."""
        return bool(_asked("startswith", (self, *args), _value(self).startswith(*args)))

    def endswith(self, *args: Any) -> bool:
        """As of any text."""
        return bool(_asked("endswith", (self, *args), _value(self).endswith(*args)))

    def __eq__(self, other: object) -> bool:
        return _compared("eq", operator.eq, self, other)  # type: ignore[no-any-return]

    def __ne__(self, other: object) -> bool:
        return _compared("ne", operator.ne, self, other)  # type: ignore[no-any-return]


def _value(text: Any) -> Any:
    return text._parts[2] if type(text) is Text else text


def _asked(name: str, operands: Sequence[Any], value: Any) -> Any:
    """What the program asks; the value is its answer."""
    trace = next(text._parts[0] for text in operands if type(text) is Text)
    known = tuple(text._parts[1] if type(text) is Text else text for text in operands)
    return trace.note(Expression(name, known), value)


def _whole(text: Any) -> Any:
    """Of a text the value, which counts from now on."""
    return _asked("value", (text,), _value(text)) if type(text) is Text else text


def _compared(name: str, function: Callable[..., Any], text: Text, other: Any) -> Any:
    if not isinstance(other, str):
        return NotImplemented
    return _asked(name, (text, other), function(_value(text), _value(other)))


def _of_whole(name: str) -> Callable[..., Any]:
    def method(self: Text, *args: Any) -> Any:
        return getattr(_whole(self), name)(*map(_whole, args))

    return method


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(other, _whole(self))


_OF_WHOLE = (
    *("hash", "str", "repr", "format", "iter", "getitem", "add", "mul", "rmul", "mod", "reduce_ex"),
    *("lt", "le", "gt", "ge"),
)
for _name in _OF_WHOLE:
    setattr(Text, f"__{_name}__", _of_whole(f"__{_name}__"))
for _name, _function in (("radd", operator.add), ("rmod", operator.mod)):
    setattr(Text, f"__{_name}__", _reflected(_function))
