"""One run of a call of a module that may be undone: what it would have changed is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.variant import Variant

Holder = MutableMapping[str, torch.Tensor]


class Attempt:
    """A run of the graph of a call. Gradients that it makes end in leaves of its own, which are
    the parameters without their hooks and ``.grad``.

    Attributes:
        begun: whether the graph has begun to run. What is before that is agreed upon by all ranks,
            and changes nothing.
    """

    def __init__(self) -> None:
        self.begun = False
        self._leaves: dict[int, torch.Tensor] = {}
        self._written: list[tuple[Holder, str, torch.Tensor]] = []

    def begin(self, variant: Variant) -> None:
        """The graph of this variant is to run.

        Raises:
            TensorOptError: it writes to a buffer of which ranks have parts.
        """
        for holder, name in variant.written_places:
            buffer = holder[name]
            if isinstance(buffer, DTensor):
                raise TensorOptError(
                    f"buffer '{name}' is large, so that ranks have parts of it, and forward writes "
                    "to it, which on_out_of_memory='smaller' does not undo; leave that out"
                )
            self._written.append((holder, name, buffer.detach().clone()))
        self.begun = True

    def cancel(self) -> None:
        """The graph has changed nothing, and another one is to run."""
        self.begun = False
        self._written.clear()

    def leaves(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the graph takes in place of these parameters and buffers."""
        return [self.leaf(tensor) for tensor in tensors]

    def leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same for one."""
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return tensor
        known = self._leaves.get(id(tensor))
        if known is None:
            known = self._leaves[id(tensor)] = tensor.detach().requires_grad_()
        return known

    def take_gradient(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What ended at the leaf of a parameter, once."""
        leaf = self._leaves.get(id(tensor))
        if leaf is None:
            return None
        gradient, leaf.grad = leaf.grad, None
        return gradient

    def forget_gradients(self) -> None:
        """Those that have ended at leaves."""
        for leaf in self._leaves.values():
            leaf.grad = None

    @contextmanager
    def buffers_before(self) -> Iterator[None]:
        """Inside, buffers that were written to have the values that they had before; afterwards
        those that they have now. What is run inside may have kept them for its backward, which
        reads no value that forward writes: that is no write for autograd."""
        now = [(holder, name, holder[name].detach().clone()) for holder, name, _ in self._written]
        self.undo()
        try:
            yield
        finally:
            buffers = tuple(holder[name] for holder, name, _ in now)
            with _unsafe_preserve_version_counter(buffers):
                _write(now)

    def undo(self) -> None:
        """Buffers get the values that they had before."""
        _write(self._written)


def _write(values: Iterable[tuple[Holder, str, torch.Tensor]]) -> None:
    with torch.no_grad():
        for holder, name, value in values:
            holder[name].copy_(value)
