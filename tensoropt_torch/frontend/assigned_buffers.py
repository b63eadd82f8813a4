"""Buffers to which a forward pass assigns new tensors (``self.scale = 0.9 * self.scale``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError


class AssignedBuffers:
    """A new tensor under a buffer's name becomes new contents of the buffer, where the forward
    pass ends: until then whoever has read the buffer goes on having the old tensor.

    ::

        assigned = AssignedBuffers(model)
        result = assigned.write(model(x))
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = _buffers(model)

    def write(self, result: Any) -> Any:
        """What the forward pass returns, with copies of old tensors; the buffers are written.

        Raises:
            TensorOptError: a buffer is another number of elements, or of another dtype.
        """
        changed = {
            name: (self._before[name], value)
            for name, value in _buffers(self._model).items()
            if name in self._before and value is not self._before[name]
        }
        if not changed:
            return result
        for name, (old, new) in changed.items():
            self._check(name, old, new)
            self._check_other_names(name, old, new)
        olds = {_memory(old) for old, _ in changed.values()}

        def own(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if _memory(tensor) in olds else tensor

        result = pytree.tree_map_only(torch.Tensor, own, result)
        # All before the first is written: buffers may change places.
        written = [(old, own(new.detach())) for old, new in changed.values()]
        for old, new in written:
            old.copy_(new)
        return result

    def _check(self, name: str, old: torch.Tensor, new: torch.Tensor) -> None:
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            raise TensorOptError(
                f"the forward pass of {type(self._model).__name__} changes buffer '{name}' from "
                f"{old.dtype} {tuple(old.shape)} to {new.dtype} {tuple(new.shape)}; "
                "a buffer has to keep its size and dtype. Make a table as large as the longest "
                "input needs when the model is made, or keep what is made anew for other sizes in "
                "an attribute that is no buffer. If the first call does that alone, call the model "
                "once before planning, on the kind of input that it is trained with"
            )

    def _check_other_names(self, name: str, old: torch.Tensor, new: torch.Tensor) -> None:
        now = _buffers(self._model)
        for other, before in self._before.items():
            if before is old and now.get(other) is not new:
                raise TensorOptError(
                    f"the forward pass of {type(self._model).__name__} gives buffer '{name}' a new "
                    f"tensor, while '{other}', which was the same buffer, keeps the old one; give "
                    "both the new one, or write to it in place (copy_)"
                )


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Under all of their names."""
    return dict(model.named_buffers(remove_duplicate=False))


def _memory(tensor: torch.Tensor) -> int:
    """What tensors have in common that are views of each other."""
    address: int = tensor.untyped_storage()._cdata
    return address
