"""Calls that backward runs again: nothing is kept of what they make and save.

::

    with ReuseRegistry():
        y = recomputed(torch.ops.aten.gelu.default, x)
        z = consumer(y)      # saves x and the call, not y

A call runs again once in a backward, when the first of the tensors that it or somebody else
saved of it is needed, and before it the calls that make its operands. It finds gradients
enabled where they were, so that kernels are the same, and saves the same tensors in the same
order.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from tensoropt_torch.runtime.random import call_seeded
from tensoropt_torch.runtime.remade import Held, Remade, SavedTensor, Unchanged, address_of
from tensoropt_torch.runtime.reuse import ReuseRegistry, active_registry


def recomputed(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What ``function`` gives, once more in backward as far as that needs it.

    It must give the same for the same arguments, and change nothing.
    """
    registry = active_registry()
    if registry is None:
        return function(*args, **kwargs)
    return _Call(function, args, kwargs, registry).run(args, kwargs)


def recomputed_beside(
    moved: Sequence[torch.Tensor], function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """``recomputed``, with arguments that others may write to without a new version: it finds
    copies of these when it runs again. What autograd saves of them is their memory, as without
    running again."""
    registry = active_registry()
    if registry is None:
        return function(*args, **kwargs)
    return _Call(function, args, kwargs, registry, moved).run(args, kwargs)


def recomputed_draw(*args: Any, **kwargs: Any) -> Any:
    """``recomputed`` of ``call_seeded``: it draws the same numbers again."""
    return recomputed(call_seeded, *args, **kwargs)


class _Operand:
    """A tensor that a call is given; a copy if it may be ``moved`` later."""

    def __init__(self, tensor: torch.Tensor, registry: ReuseRegistry, moved: bool) -> None:
        self.held: Held = Unchanged(tensor.clone()) if moved else registry.hold(tensor)
        self._requires_grad = tensor.requires_grad

    def tensor(self, made: Mapping[Remade, torch.Tensor]) -> torch.Tensor:
        """A leaf, as it was in forward; of what is ``made`` already if it is there."""
        held = self.held
        values = held.unpack_values(made) if isinstance(held, SavedTensor) else held.unpack_values()
        return values.detach().requires_grad_(self._requires_grad)


class _Made(Remade):
    """A tensor that a call makes or saves."""

    def __init__(self, tensor: torch.Tensor, call: _Call) -> None:
        super().__init__(tensor)
        self._call = call

    def make(self) -> None:
        self._call.share()

    def replay(self, made: Mapping[Remade, torch.Tensor]) -> Mapping[Remade, torch.Tensor]:
        results = self._call.results(self._call.run_again(made))
        return {waits: tensor for waits, tensor in results if waits is not None}

    def operands(self) -> Sequence[Held]:
        return self._call.held


class _Call:
    """What is called, with what, and what waits for what it makes. Who no longer waits is
    gone."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        registry: ReuseRegistry,
        moved: Sequence[torch.Tensor] = (),
    ) -> None:
        self._function = function
        self._moved = {address_of(tensor) for tensor in moved}
        flat, self._spec = pytree.tree_flatten((args, kwargs))
        self._operands = [
            _Operand(leaf, registry, bool(self._moved) and address_of(leaf) in self._moved)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in flat
        ]
        self.held = [leaf.held for leaf in self._operands if isinstance(leaf, _Operand)]
        self._registry: ReuseRegistry | None = registry  # until forward has run
        self._made: list[weakref.ref[_Made]] = []  # what is saved, then results

    def run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """In forward."""
        registry, self._registry = self._registry, None
        assert registry is not None
        with registry.packing_with(functools.partial(self._pack, registry)):
            result = self._function(*args, **kwargs)
        given = {address_of(tensor) for tensor in _tensors((args, kwargs))}
        for leaf in _tensors(result):
            made = self._add(leaf)
            if address_of(leaf) not in given:
                registry.add(made)
        return result

    def _add(self, tensor: torch.Tensor) -> _Made:
        made = _Made(tensor, self)
        self._made.append(weakref.ref(made))
        return made

    def _pack(self, registry: ReuseRegistry, tensor: torch.Tensor) -> Held:
        address = address_of(tensor)
        if address is None:
            return Unchanged(tensor)
        made = self._add(tensor)
        return registry.hold(tensor) if address in self._moved else SavedTensor(made, tensor)

    def share(self) -> None:
        """Runs again for all that wait."""
        for waits, tensor in self.results(self.run_again({})):
            if waits is not None:
                waits.share(tensor)

    def results(self, tensors: list[torch.Tensor]) -> Iterator[tuple[_Made | None, torch.Tensor]]:
        """Each tensor of ``run_again``, and what stands for it, if that is still there."""
        for made, tensor in zip(self._made, tensors, strict=True):
            yield made(), tensor

    def run_again(self, made: Mapping[Remade, torch.Tensor]) -> list[torch.Tensor]:
        """What is saved, then results."""
        flat = [
            leaf.tensor(made) if isinstance(leaf, _Operand) else leaf for leaf in self._operands
        ]
        args, kwargs = pytree.tree_unflatten(flat, self._spec)
        saved: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> None:
            if address_of(tensor) is not None:
                saved.append(tensor.detach())

        with _as_in_forward(), saved_tensors_hooks(pack, _never):
            result = self._function(*args, **kwargs)
        return [*saved, *(tensor.detach() for tensor in _tensors(result))]


@contextmanager
def _as_in_forward() -> Iterator[None]:
    """With gradients, and without the casts of an autocast that backward is called in."""
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _never(packed: Any) -> torch.Tensor:
    raise AssertionError("what a call saves in backward is not differentiated")
