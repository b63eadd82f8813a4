"""What Python objects are, as text that is the same in all processes that run one program."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


class Describer:
    """Texts of values. What cannot be told from others of its kind is in ``opaque`` then: it is
    described by its type alone."""

    def __init__(self) -> None:
        self.opaque: list[Any] = []
        self._seen: set[int] = set()  # of what is being described, which may contain itself

    def text(self, value: Any) -> str:
        """Equal for equal values, unless ``opaque`` has parts of them."""
        if isinstance(value, enum.Enum):
            return f"{_name(type(value))}.{value.name}"
        if type(value) in _PLAIN or isinstance(value, _OF_TORCH):
            return repr(value)
        if id(value) in self._seen:
            return "itself"
        self._seen.add(id(value))
        try:
            return self._text_of_parts(value)
        finally:
            self._seen.discard(id(value))

    def _text_of_parts(self, value: Any) -> str:
        if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
            inside = ", ".join(f"{self.text(k)}: {self.text(v)}" for k, v in value.items())
            return f"{_name(type(value))}({inside})"
        if isinstance(value, (tuple, list)):
            return f"{_name(type(value))}({', '.join(map(self.text, value))})"
        if isinstance(value, (set, frozenset)):
            return f"{_name(type(value))}({', '.join(sorted(map(self.text, value)))})"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
            return f"{_name(type(value))}({', '.join(f'{n}={self.text(v)}' for n, v in fields)})"
        if isinstance(value, functools.partial):
            return f"partial({self.text((value.func, value.args, value.keywords))})"
        if isinstance(value, FunctionType):
            return self._text_of_function(value)
        if isinstance(value, MethodType):
            return f"{self.text(value.__func__)} of {self.text(value.__self__)}"
        if isinstance(value, type):
            return self._text_of_class(value)
        if callable(value) and hasattr(value, "__qualname__") and hasattr(value, "__module__"):
            return f"{value.__module__}.{value.__qualname__}"  # of C
        self.opaque.append(value)
        return _name(type(value))

    def _text_of_function(self, function: FunctionType) -> str:
        name = f"{function.__module__}.{function.__qualname__}"
        inside = [
            *_cells(function),
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
        ]
        values = ", ".join(map(self.text, inside))
        return f"{name}:{digest(repr(content(function.__code__)))}({values})"

    def _text_of_class(self, kind: type) -> str:
        """Of one that was made in a function with what its methods are."""
        if "<locals>" not in kind.__qualname__:
            return _name(kind)
        parts = [
            (name, getattr(member, "__func__", member))
            for name, member in sorted(vars(kind).items())
            if not name.startswith("__")
        ]
        return f"{_name(kind)}({', '.join(f'{n}={self.text(m)}' for n, m in parts)})"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing is in it yet
            yield None


def content(code: CodeType) -> tuple[Any, ...]:
    """What a function does, wherever it is written."""
    return code.co_code, code.co_names, [_constant(constant) for constant in code.co_consts]


def _constant(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return content(constant)
    # The order of a set's strings differs between processes.
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)


def digest(text: str) -> str:
    """A short hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
