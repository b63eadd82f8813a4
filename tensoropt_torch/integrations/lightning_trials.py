"""A step of a ``LightningModule`` that is tried before there are optimizers and loggers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import _init_optimizers_and_lr_schedulers
from torch import nn


@contextmanager
def tried_out(module: LightningModule) -> Iterator[None]:
    """Inside, a step logs nothing and optimizes nothing, and of what it changes buffers and
    gradients are as before afterwards."""
    optimizers = _Optimizers(module)
    instead: dict[str, Callable[..., Any]] = {
        "log": _nothing,
        "log_dict": _nothing,
        "manual_backward": _nothing,
        "clip_gradients": _nothing,
        "toggle_optimizer": _nothing,
        "untoggle_optimizer": _nothing,
        "toggled_optimizer": lambda *_, **__: nullcontext(),
        "optimizers": optimizers.get,
        "lr_schedulers": optimizers.schedulers,
    }
    module.__dict__.update(instead)
    try:
        with _kept_tensors(module):
            yield
    finally:
        for name in instead:
            del module.__dict__[name]


def _nothing(*_: Any, **__: Any) -> None:
    """In place of what acts on the trainer."""


class _Optimizers:
    """What stands for those that ``configure_optimizers`` makes; it is called when a step asks."""

    def __init__(self, module: LightningModule) -> None:
        self._module = module

    def get(self, use_pl_optimizer: bool = True) -> Any:
        return _one_or_all([_Idle(optimizer) for optimizer in self._made[0]])

    def schedulers(self) -> Any:
        found = [_Idle(config.scheduler) for config in self._made[1]]
        return _one_or_all(found) if found else None

    @cached_property
    def _made(self) -> tuple[list[Any], list[Any]]:
        optimizers, schedulers = _init_optimizers_and_lr_schedulers(self._module)
        return list(optimizers), list(schedulers)


def _one_or_all(found: list[Any]) -> Any:
    return found[0] if len(found) == 1 else found


class _Idle:
    """An optimizer or scheduler that steps nowhere; what else is asked of it is real."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def step(self, closure: Callable[[], Any] | None = None, *_: Any, **__: Any) -> Any:
        return closure() if callable(closure) else None

    def zero_grad(self, *_: Any, **__: Any) -> None:
        """There are no gradients."""

    def toggle_model(self, *_: Any, **__: Any) -> Any:
        return nullcontext()


@contextmanager
def _kept_tensors(module: nn.Module) -> Iterator[None]:
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
