"""What acts through Python is recorded while a model is captured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.autograd.function import _SingleLevelFunction
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from tensoropt_torch.frontend.python_calls.functions import (
    apply_itself,
    is_left_alone,
    recorded,
)


@contextmanager
def python_calls_recorded(model: nn.Module) -> Iterator[None]:
    """Calls of ``Function.apply`` and hooks that are set become operators of the graph that
    this thread captures of ``model``."""
    with ExitStack() as stack:
        stack.enter_context(_functions_recorded())
        yield


@contextmanager
def _functions_recorded() -> Iterator[None]:
    """``Function.apply`` ends in that of its base, so that there also those are seen who got it
    before."""
    thread = threading.get_ident()

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        # Inside of an operator nothing is recorded: what it calls is a part of it.
        own = threading.get_ident() == thread and get_proxy_mode() is not None
        if not own or kwargs or is_left_alone(function):
            return apply_itself(function, args, kwargs)
        return recorded(function, args)

    _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del _SingleLevelFunction.apply
