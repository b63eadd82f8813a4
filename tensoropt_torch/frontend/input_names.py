"""What the inputs of a call are called: as in the signature of what takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.utils import _pytree as pytree


def input_names(
    model: nn.Module,
    args: Sequence[Any],
    loss_fn: Callable[..., Any] | None,
    arguments: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[str]:
    """The names of the leaves of ``(arguments, kwargs)``, in their order, all different:
    ``tokens``, or ``batch[0]`` of an input that is a container. ``arguments`` are those of
    the model, ``args``, followed by the targets of ``loss_fn``."""
    positional = _parameters(model.forward, len(args))
    targets = len(arguments) - len(args)
    if loss_fn is not None:
        positional += _parameters(loss_fn, targets + 1)[1:]
    names: list[str] = []
    for name, value in (*zip(positional, arguments, strict=True), *kwargs.items()):
        taken = name in names or (name in kwargs and value is not kwargs[name])
        name = f"targets.{name}" if taken else name
        leaves, _ = pytree.tree_flatten_with_path(value)
        names += [name + pytree.keystr(path) for path, _ in leaves]
    return names


def _parameters(function: Callable[..., Any], count: int) -> list[str]:
    """What the first ``count`` positional arguments are called."""
    names: list[str] = []
    rest = "args"
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of what is not written in Python
        parameters = {}.values()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = parameter.name
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names += [f"{rest}_{index}" for index in range(max(0, count - len(names)))]
    return names[:count]
