"""A micro-batch of a stage whose forward and backward are two functions, without autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.boxed import BoxedCall
from tensoropt_torch.emit.recorded_borders import take_one_by_one


class RecordedFlight:
    """A micro-batch whose forward and backward are functions, see ``emit/boxed.py``.

    Attributes:
        made: what the graph gives.
    """

    def __init__(self, call: BoxedCall) -> None:
        self._call = call
        outputs, constant = call.forward()
        self.made: Sequence[Any] = pytree.tree_unflatten(call.leaves(outputs), call.spec)
        self._numbers = {id(output): number for number, output in enumerate(outputs)}
        self._constant = {*constant}
        self._outputs = outputs

    def has_gradient(self, tensor: torch.Tensor) -> bool:
        """Whether one of what was made depends on anything that is trained."""
        return self._numbers[id(tensor)] not in self._constant

    def backward(
        self,
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
        sums: Mapping[int, torch.Tensor],
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of what is trained, for those of these outputs, but for those that are
        added to sums."""
        tangents: list[torch.Tensor | None] = [None] * len(self._outputs)
        for tensor, gradient in pairs:
            number = self._numbers[id(tensor)]
            given = torch.ones_like(tensor) if gradient is None else gradient
            before = tangents[number]
            tangents[number] = given if before is None else before + given
        self.made, self._outputs = (), []
        taking = _Summed(sums)
        with torch.no_grad():
            rest = self._call.backward(tangents, taking)
            return [taking.left(*numbered) for numbered in enumerate(rest)]


class _Summed:
    """Gradients that are added to these sums, by their numbers, as soon as they are made."""

    def __init__(self, sums: Mapping[int, torch.Tensor]) -> None:
        self._sums = sums
        self._left: dict[int, torch.Tensor] = {}

    def take(self, number: int, gradient: torch.Tensor) -> None:
        """See ``Given``."""
        left = self.left(number, gradient)
        if left is not None:
            self._left[number] = left

    def take_those(self, numbers: Sequence[int], gradients: list[torch.Tensor | None]) -> None:
        """See ``Given``."""
        take_one_by_one(self, numbers, gradients)

    def rest(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """See ``Given``."""
        return [self._left.get(number, found) for number, found in enumerate(gradients)]

    def left(self, number: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """What is not added to a sum."""
        total = self._sums.get(number)
        if total is None or gradient is None:
            return gradient
        total.add_(gradient)
        return None
