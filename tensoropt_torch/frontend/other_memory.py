"""Tensors of a module that get other memory in a forward pass (``p.data = x``)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tensoropt_torch.errors import TensorOptError

_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_PACKAGE = __name__.partition(".")[0]


class KeepMemory(TorchFunctionMode):
    """Refuses it of parameters and buffers: a graph has no call for it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """As the function.

        Raises:
            TensorOptError: the function sets ``.data`` of a tensor of the module.
        """
        if func == _SET_DATA:
            self._check(args[0])
        return func(*args, **(kwargs or {}))

    def _check(self, tensor: torch.Tensor) -> None:
        way_out = (
            "assign a new tensor to the buffer itself (self.name = ...)",
            "ranks hold parts of parameters, which a forward pass must not change; keep what moves "
            "in a buffer, and assign that (self.name = ...), or change the parameter in the "
            "training loop, under torch.no_grad (parameter.copy_(...))",
        )
        kinds = (
            ("buffer", self._model.named_buffers()),
            ("parameter", self._model.named_parameters()),
        )
        for (kind, named), instead in zip(kinds, way_out, strict=True):
            for name, own in named:
                if own is tensor:
                    raise TensorOptError(
                        f"the forward pass of {type(self._model).__name__} sets .data of {kind} "
                        f"'{name}'{_line()}; {instead}"
                    )


def _line() -> str:
    """Of the user's code that is called."""
    for frame in reversed(traceback.extract_stack()):
        if "/torch/" not in frame.filename and f"/{_PACKAGE}/" not in frame.filename:
            return f" (at {frame.filename}:{frame.lineno}: {frame.line})"
    return ""
