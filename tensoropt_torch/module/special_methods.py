"""Classes of parallel modules with the special methods that the model's class has.

Python looks for ``len``, ``[0]`` and iteration in the class, not among attributes, and PyTorch so
for extra states. Those of the model act on the stand-ins of its modules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

_SPECIAL = (
    "__len__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__iter__",
    "__reversed__",
    "__contains__",
    "__add__",
    "__iadd__",
    "__mul__",
    "__imul__",
    "get_extra_state",
    "set_extra_state",
)


@functools.cache
def class_with_special_methods(own: Any, kind: Any) -> Any:
    """``own``, or a class made of it that has those of the class ``kind`` besides."""
    names = [
        name for name in _SPECIAL if getattr(kind, name, None) is not getattr(nn.Module, name, None)
    ]
    if not names:
        return own
    content = {name: _forwarded(name, getattr(kind, name)) for name in names}
    return type(own.__name__, (own,), {"__module__": own.__module__, **content})


def _forwarded(name: str, method: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        return getattr(self.original, name)(*args)

    return call
