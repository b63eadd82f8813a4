"""What a call of a module depends on besides the module and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

Outputs = Literal["loss", "all"]
Autocast = tuple[tuple[str, torch.dtype], ...]  # what is cast to, by device type

_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True)
class CallContext:
    """What a call of a module depends on besides the module and its arguments.

    Attributes:
        gradients: whether gradients are on. Without, the graph is one of forward alone.
        autocast: what ``torch.autocast`` casts to around the call.
        outputs: ``"loss"``: of an output with a ``loss`` a training step keeps only that;
            ``"all"``: everything, and with a ``loss_fn`` the pair of loss and output.
        batch_norm_groups: into how many groups of rows, each with statistics of its own, the
            batch falls for batch normalisation in training.
    """

    gradients: bool = True
    autocast: Autocast = ()
    outputs: Outputs = "loss"
    batch_norm_groups: int = 1


TRAINING = CallContext()  # an ordinary training step


@dataclass(frozen=True)
class CallForm:
    """How a module is called: with ``num_inputs`` positional arguments, followed, if there
    is a ``loss_fn``, by ``num_targets`` that it takes after the module's output."""

    num_inputs: int
    loss_fn: Callable[..., torch.Tensor] | None = None
    num_targets: int = 0


def autocast_device() -> str:
    """The type of device whose casts are made here: without a GPU PyTorch knows those of CPUs
    alone."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def current_autocast() -> Autocast:
    """What ``torch.autocast`` casts to where this is called."""
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in _DEVICE_TYPES
        if torch.is_autocast_enabled(device)
    )


@contextmanager
def autocast_off(current: Autocast) -> Iterator[None]:
    """Without any of the casts that are ``current``."""
    with ExitStack() as stack:
        for device, _ in current:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def called_in(context: CallContext) -> Iterator[Any]:
    """The casts of a call in this context."""
    with ExitStack() as stack:
        for device, dtype in context.autocast:
            stack.enter_context(torch.autocast(device, dtype))
        yield
