"""Passes that keep gradients, and those that reduce what was kept, as recorded functions.

::

    boxed = variant.boxed_pass(reduces)       # None: they run operator by operator
    outputs = boxed.forward(values, trained, again, PassBorders(sink, trained))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tensoropt_torch.emit.one_node import Trained
from tensoropt_torch.emit.recorded_borders import Given, GivenAtBorders
from tensoropt_torch.module.gradient_sinks import PassSink, sent_together
from tensoropt_torch.parameters.kept_gradients import lies_at
from tensoropt_torch.parameters.local_parts import is_for_grad


class PassBorders:
    """See ``Borders``.

    Args:
        sink: of the pass.
        trained: what it has gradients for.
    """

    def __init__(self, sink: PassSink, trained: Trained) -> None:
        self.adds_casts = False
        own = {id(tensor): number for number, tensor in enumerate(trained.tensors)}
        numbers = {name: own.get(id(sink.parameter(name))) for name in sink.hooked.borders}
        self._numbers = {name: n for name, n in numbers.items() if n is not None}
        self.names: Sequence[str] = tuple(self._numbers)
        self._sink = sink
        self._count = len(trained.tensors)
        self._accumulate: dict[str, Any] = {}
        self._taken: dict[str, DTensor] = {}

    def ends(self, parameter: str) -> bool:
        """In passes that keep gradients."""
        return not self._sink.reduces

    def taken(self) -> list[torch.Tensor | None]:
        """What was kept for each."""
        if not self._sink.reduces:
            return []
        found: list[torch.Tensor | None] = []
        for name in self.names:
            whole = self._sink.parameter(name)
            kept = whole.grad
            is_added = kept is not None and is_for_grad(kept, whole, self._accumulate[name])
            if is_added and lies_at(kept, self._sink.placements(name)):
                self._taken[name], whole.grad = kept, None
                found.append(kept._local_tensor)
            else:
                found.append(None)
        return found

    def put_back(self) -> None:
        """Before backward runs otherwise."""
        for name, kept in self._taken.items():
            self._sink.parameter(name).grad = kept
        self._taken.clear()

    def let_go(self) -> None:
        """Not even then: a backward that fails leaves what was kept."""

    def with_kept(self, parameter: str, gradient: torch.Tensor) -> torch.Tensor | None:
        """As a step that runs operator by operator."""
        self._sink.parameter(parameter).grad = self._taken.pop(parameter)
        return self._sink.with_kept(parameter, gradient)

    def given(self, gate: torch.Tensor | None, given: Given) -> Given:
        """Of a backward; behind the gate is what is trained."""
        assert gate is not None and gate.grad_fn is not None
        edges = gate.grad_fn.next_functions
        self._accumulate = {name: edges[number][0] for name, number in self._numbers.items()}
        return given if self._sink.reduces else _KeptAtBorders(self, given, self._count)

    def kept(self, name: str, gradient: torch.Tensor) -> bool:
        """Whether a gradient stays as it is."""
        return not self._sink.sent({name: gradient}, self._accumulate)

    def sent(self, gradients: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        """What programs make of gradients, by the number of what is trained."""
        programs = {name: self._sink.hooked.borders[name][1] for name in gradients}
        made = sent_together(gradients, programs, None)
        return {self._numbers[name]: gradient for name, gradient in made.items()}


class _KeptAtBorders(GivenAtBorders):
    """Gradients at borders are kept; those that somebody waits for are sent to their parameters."""

    def __init__(self, borders: PassBorders, given: Given, count: int) -> None:
        super().__init__(given, count, borders.names)
        self._borders = borders
        self._left: dict[str, torch.Tensor] = {}

    def end(self, name: str, gradient: torch.Tensor) -> None:
        """See ``GivenAtBorders``."""
        if not self._borders.kept(name, gradient):
            self._left[name] = gradient

    def sent(self) -> Mapping[int, torch.Tensor]:
        """See ``GivenAtBorders``."""
        return self._borders.sent(self._left)
