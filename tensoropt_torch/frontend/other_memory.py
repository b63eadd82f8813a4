"""What a forward pass does with ``.data`` of tensors, and with gradients that it takes itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.user_lines import line_of_call

_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_GRADIENTS = {
    torch.autograd.grad: "torch.autograd.grad",
    torch.autograd.backward: "torch.autograd.backward",
    torch.Tensor.backward: "backward",
}

_FOR_BUFFERS = "assign a new tensor to the buffer itself (self.name = ...)"
_FOR_PARAMETERS = (
    "ranks hold parts of parameters, which a forward pass must not change; keep what moves "
    "in a buffer, and assign that (self.name = ...), or change the parameter in the "
    "training loop, under torch.no_grad (parameter.copy_(...))"
)
_FOR_OTHERS = (
    "a captured graph has no call for it; go on with a new tensor, as y + (z - y).detach() for the "
    "values of z with the gradient of y"
)


class KeepMemory(TorchFunctionMode):
    """``x.data`` is ``x.detach()``: a graph has a call for it, and it has the same values and
    memory. Refused is what a graph has no call for: to set ``.data``, and to take gradients."""

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
            TensorOptError: the function sets ``.data`` of a tensor, or takes
                gradients.
        """
        if func == _DATA:
            return args[0].detach()
        if func == _SET_DATA:
            self._refuse_data(args[0])
        if func in _GRADIENTS:
            self._refuse_gradients(_GRADIENTS[func])
        return func(*args, **(kwargs or {}))

    def _refuse_gradients(self, call: str) -> None:
        raise TensorOptError(
            f"the forward pass of {type(self._model).__name__} calls {call}{line_of_call()}; a "
            "captured graph has no gradients inside: return what is differentiated, and call "
            "torch.autograd.grad(..., create_graph=True) in the training loop, which parallel "
            "modules support, or write the derivative with operators"
        )

    def _refuse_data(self, tensor: torch.Tensor) -> None:
        kinds = (
            ("buffer", self._model.named_buffers(), _FOR_BUFFERS),
            ("parameter", self._model.named_parameters(), _FOR_PARAMETERS),
        )
        found = (
            (f"{k} '{n}'", way) for k, named, way in kinds for n, own in named if own is tensor
        )
        what, way_out = next(found, ("a tensor", _FOR_OTHERS))
        raise TensorOptError(
            f"the forward pass of {type(self._model).__name__} sets .data of {what}"
            f"{line_of_call()}; {way_out}"
        )
