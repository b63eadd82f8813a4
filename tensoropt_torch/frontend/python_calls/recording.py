"""What acts through Python is recorded while a model is captured."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch.autograd.function import _SingleLevelFunction
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import BackwardHook

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.python_calls.autograd_functions import (
    apply_itself,
    is_left_alone,
    recorded,
)
from tensoropt_torch.frontend.python_calls.model_names import ModelNames
from tensoropt_torch.frontend.python_calls.module_hooks import (
    check_legacy_hooks,
    inputs_hooked,
    outputs_hooked,
)
from tensoropt_torch.frontend.python_calls.tensor_hooks import set_hook


@contextmanager
def python_calls_recorded(model: nn.Module) -> Iterator[None]:
    """Calls of ``Function.apply`` and hooks that are set become operators of the graph that
    this thread captures of ``model``.

    Raises:
        TensorOptError: a module has hooks that cannot be captured.
    """
    check_legacy_hooks(model)
    recorder = _Recorder(model)
    with ExitStack() as stack:
        stack.callback(recorder.restore)
        recorder.replace()
        stack.enter_context(_GradFns())
        yield


class _Recorder:
    """What stands in the place of functions of PyTorch."""

    def __init__(self, model: nn.Module) -> None:
        self._thread = threading.get_ident()
        self._names = ModelNames.of(model)
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self) -> None:
        """``Function.apply`` ends in that of its base, so that there also those are seen who
        got it before."""
        self._put(_SingleLevelFunction, "apply", classmethod(self._apply()))
        self._put(torch.Tensor, "register_hook", self._instead(self._set_hook))
        self._put(torch.Tensor, "retain_grad", self._instead(_refuse_retain_grad))
        accumulate = "register_post_accumulate_grad_hook"
        self._put(torch.Tensor, accumulate, self._instead(_refuse_accumulate_hook))
        self._put(BackwardHook, "setup_input_hook", self._instead(self._inputs))
        self._put(BackwardHook, "setup_output_hook", self._instead(outputs_hooked))

    def restore(self) -> None:
        """As it was."""
        for owner, name, before in reversed(self._replaced):
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def _put(self, owner: Any, name: str, made: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name)))
        given = getattr(owner, name)
        setattr(owner, name, made(given) if callable(made) else made)

    def _is_captured(self) -> bool:
        """Inside of an operator nothing is recorded: what it calls is a part of it."""
        return threading.get_ident() == self._thread and get_proxy_mode() is not None

    def _apply(self) -> Callable[..., Any]:
        def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_captured() or kwargs or is_left_alone(function):
                return apply_itself(function, args, kwargs)
            return recorded(function, args, self._names)

        return apply

    def _instead(self, record: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
        """A method that records where the model is captured, and is itself elsewhere."""

        def made(given: Callable[..., Any]) -> Callable[..., Any]:
            def method(own: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._is_captured():
                    return given(own, *args, **kwargs)
                return record(own, *args, **kwargs)

            return method

        return made

    def _inputs(self, hook: Any, args: Any) -> Any:
        return inputs_hooked(hook, args, self._names)

    def _set_hook(self, tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
        if not tensor.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        return set_hook(tensor, hook, self._names)


def _refuse_retain_grad(tensor: torch.Tensor) -> None:
    if tensor.requires_grad and not tensor.is_leaf:
        raise TensorOptError(
            "retain_grad in forward cannot be captured: nobody could read the .grad of a tensor "
            f"of a captured forward (shape {tuple(tensor.shape)}); set a hook on it that keeps "
            "the gradient (tensor.register_hook)"
        )


def _refuse_accumulate_hook(tensor: torch.Tensor, hook: Any) -> NoReturn:
    raise TensorOptError(
        "forward sets a post-accumulate-grad hook, which would have one more after every call: set "
        "it once, before the module becomes parallel or on the parameters of the parallel module"
    )


class _GradFn:
    """In the place of a ``grad_fn`` that forward reads: all but its hooks."""

    def __init__(self, grad_fn: Any) -> None:
        self._grad_fn = grad_fn

    def __getattr__(self, name: str) -> Any:
        if name in ("register_hook", "register_prehook"):
            raise TensorOptError(
                f"grad_fn.{name} in forward cannot be captured: set the hook on the tensor "
                "(tensor.register_hook)"
            )
        return getattr(self._grad_fn, name)


class _GradFns(TorchFunctionMode):
    """Sees who reads ``grad_fn``."""

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """As the function; what it gives refuses hooks."""
        result = func(*args, **(kwargs or {}))
        if func == _GET_GRAD_FN and result is not None and not _is_read_by_torch():
            return _GradFn(result)
        return result


_GET_GRAD_FN: Any = getattr(torch.Tensor.grad_fn, "__get__")  # noqa: B009


def _is_read_by_torch() -> bool:
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).split(".")[0] == "torch"
