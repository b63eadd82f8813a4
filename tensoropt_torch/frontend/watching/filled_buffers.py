"""Buffers that a forward pass fills where there was none (``register_buffer("table", None)``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.watching.attribute_uses import Owner, Place
from tensoropt_torch.frontend.watching.images import Image, image_of


class FilledBuffers:
    """Which buffers are filled from now on; ``restore`` empties them again.

    ::

        filled = FilledBuffers(owners)
        model(x)
        filled.images()  # of the buffers that are new
        filled.restore()
    """

    def __init__(self, owners: Sequence[Owner]) -> None:
        self._empty = [
            (owner, dict(owner.module._buffers), set(owner.module._non_persistent_buffers_set))
            for owner in owners
        ]

    def images(self) -> dict[Place, Image]:
        """What the new ones are, which tells whether they change."""
        return {owner.place(name): image_of(value) for owner, name, value in self._new()}

    def saved(self) -> list[Place]:
        """The new ones that state dicts of the model have from then on."""
        return [
            owner.place(name)
            for owner, name, _ in self._new()
            if name not in owner.module._non_persistent_buffers_set
            and self._is_in_state_dict(owner, name)
        ]

    def _is_in_state_dict(self, owner: Owner, name: str) -> bool:
        """Whether the buffer makes a difference to the state dict: modules may leave it out by a
        hook or a method of their own."""
        roots = (o.module for o, _, _ in self._empty if o.of_loss == owner.of_loss and not o.path)
        root, buffers = next(roots, owner.module), owner.module._buffers
        value = buffers[name]
        try:
            filled = _state_names(root)
            buffers[name] = None
            return filled != _state_names(root)
        except Exception:  # of code of the model, which tells nothing
            return True
        finally:
            buffers[name] = value

    def _new(self) -> Iterator[tuple[Owner, str, torch.Tensor]]:
        for owner, before, _ in self._empty:
            for name, value in owner.module._buffers.items():
                if isinstance(value, torch.Tensor) and before.get(name) is None:
                    yield owner, name, value

    def restore(self) -> None:
        """The modules have the buffers that they had, and the same tensors in the others."""
        for owner, before, passing in self._empty:
            module: nn.Module = owner.module
            for name in [n for n in module._buffers if before.get(n) is None]:
                if name in before:
                    module._buffers[name] = None
                else:
                    del module._buffers[name]
            module._non_persistent_buffers_set &= passing | set(module._buffers)


def _state_names(module: nn.Module) -> set[str]:
    # Nothing that a hook computes becomes a part of the graph that is traced.
    with disable_proxy_modes_tracing(), torch.no_grad():
        return {*module.state_dict(keep_vars=True)}


def refuse_in_other_calls(model: str, first: Sequence[str], here: Sequence[str]) -> None:
    """Raises TensorOptError if the example's forward pass has filled something, or another call
    fills it: what the first call of all makes is not what that call would."""
    names = ", ".join(f"'{place}'" for place in dict.fromkeys((*first, *here)))
    if names:
        raise TensorOptError(
            f"the first forward pass of {model} fills {names}, which held nothing before, and this "
            "call is not like the example of the plan: it would make its own, where the model "
            "keeps what its first call has made. Call the model once before planning, on the kind "
            "of input that it is trained with, or make it when the model is made, as large as the "
            "longest input needs"
        )


def refuse_saved(model: str, places: Sequence[Place]) -> None:
    """Raises TensorOptError if there are any: a state dict of the model has them after its first
    call, and one of a graph that makes them in each call has not."""
    if places:
        names = ", ".join(f"'{place}'" for place in places)
        raise TensorOptError(
            f"the first forward pass of {model} fills {names}, which held nothing before and which "
            "its state dict has from then on, while that of a parallel module would not. Call the "
            "model once before planning, on the kind of input that it is trained with, make the "
            "buffer when the model is made, or register it with persistent=False"
        )


def refuse_filled(model: str, places: Iterable[Place]) -> None:
    """Raises TensorOptError if there are any: later calls do something else."""
    names = ", ".join(f"'{place}'" for place in places)
    if names:
        raise TensorOptError(
            f"the forward pass of {model} fills {names}, which held nothing before, so that its "
            "first call computes something else than later ones; a captured graph would compute "
            "the same in every call. Call the model once before planning, on the kind of input "
            "that it is trained with, or make the buffer when the model is made"
        )
