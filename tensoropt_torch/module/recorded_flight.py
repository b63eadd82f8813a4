"""A micro-batch of a stage whose forward and backward are two functions, without autograd.

Gradients of parameters that are reduced in the last micro-batch end at borders in those before it
(``emit/recorded_borders.py``), where they are added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.boxed import BoxedCall
from tensoropt_torch.emit.recorded_borders import Given, GivenAtBorders, take_one_by_one
from tensoropt_torch.module.gradient_sinks import StepSink


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
            rest = self._call.backward(tangents, self._call.given(None, taking))
            return [taking.left(*numbered) for numbered in enumerate(rest)]


class StepBorders:
    """See ``Borders``; of a micro-batch.

    Args:
        sink: of the step.
        sent: those whose programs get what the sink takes of gradients.
        count: how much is trained.
    """

    def __init__(self, sink: StepSink, sent: Sequence[str], count: int) -> None:
        self.names: Sequence[str] = sink.taken
        self.adds_casts = True
        self._sent = frozenset(sent)
        self._sink = sink
        self._count = count
        self._taken: dict[str, torch.Tensor] = {}

    def ends(self, parameter: str) -> bool:
        """But in the last micro-batch."""
        return parameter not in self._sent

    def taken(self) -> list[torch.Tensor | None]:
        """What micro-batches before have added up."""
        if not self._sent:
            return []
        own = [name for name in self.names if name in self._sent]
        self._taken = self._sink.take_sums(own)
        return [self._taken.get(name) for name in self.names]

    def put_back(self) -> None:
        """Before backward runs otherwise."""
        self._sink.sums |= self._taken
        self.let_go()

    def let_go(self) -> None:
        """What is sent is let go of by who sends it."""
        self._taken = {}

    def with_kept(self, parameter: str, gradient: torch.Tensor) -> torch.Tensor | None:
        """Not asked for: what is made in another dtype is added up."""
        raise AssertionError(parameter)

    def given(self, gate: torch.Tensor | None, given: Given) -> Given:
        """Who takes gradients."""
        is_plain = self._sent.issuperset(self.names)
        return given if is_plain else _SummedAtBorders(self._sink, given, self._count)


class _SummedAtBorders(GivenAtBorders):
    """Gradients at borders are added up."""

    def __init__(self, sink: StepSink, given: Given, count: int) -> None:
        super().__init__(given, count, sink.taken)
        self._sink = sink

    def end(self, name: str, gradient: torch.Tensor) -> None:
        """See ``GivenAtBorders``."""
        self._sink.add_up(name, gradient)


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
