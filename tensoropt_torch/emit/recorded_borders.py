"""Where gradients of parameters meet what passes before have kept, in steps that are recorded.

Gradients that are kept end at these **borders**: what comes there is given, by name, beside the
gradients of leaves. Those that go on take what was kept, beside the gradients of outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

Gradients = tuple[torch.Tensor | None, ...]


class Given(Protocol):
    """Who takes gradients in a backward."""

    def take(self, number: int, gradient: torch.Tensor) -> None:
        """One that has memory of its own and lies as its leaf does."""

    def take_those(self, numbers: Sequence[int], gradients: list[torch.Tensor | None]) -> None:
        """Such as these of a list, which loses those that are taken."""

    def rest(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What a node of autograd returns, where these come besides."""


def take_one_by_one(
    given: Given, numbers: Sequence[int], gradients: list[torch.Tensor | None]
) -> None:
    """As its ``take_those``."""
    for number in numbers:
        gradient, gradients[number] = gradients[number], None
        assert gradient is not None
        given.take(number, gradient)


class Borders(Protocol):
    """Those of one pass.

    Attributes:
        names: of the parameters whose gradients end, or are added to, there, in order; those of
            others pass.
        adds_casts: whether one that is made in another dtype than it is kept in is added to that,
            and goes no further; otherwise it is not recorded.
    """

    names: Sequence[str]
    adds_casts: bool

    def ends(self, parameter: str) -> bool:
        """Whether its gradient stays there; otherwise it goes on, with what was kept."""

    def taken(self) -> list[torch.Tensor | None]:
        """What was kept for each, where backward adds to it; nothing where all end."""

    def put_back(self) -> None:
        """What was taken is kept again."""

    def let_go(self) -> None:
        """A backward runs that has what was taken."""

    def with_kept(self, parameter: str, gradient: torch.Tensor) -> torch.Tensor | None:
        """What goes on where what was taken cannot be added up in place."""

    def given(self, gate: torch.Tensor | None, given: Given) -> Given:
        """Who takes the gradients of leaves, those ``given``, and those at borders. The leaves are
        behind a gate, unless autograd has no part in the pass."""


class RecordedBorders:
    """What passes them while a tape records.

    Attributes:
        kept: of passes before, by name.
        found: what came there, if it does not go on.
        reason: why that cannot be recorded; empty: it can.
        gives: whether any ends there.
    """

    def __init__(self, borders: Borders) -> None:
        self.kept: dict[str, torch.Tensor] = {}
        self.found: dict[str, torch.Tensor] = {}
        self.reason = ""
        self._borders = borders
        self._names = frozenset(borders.names)
        self.gives = any(map(borders.ends, borders.names))

    def watch(self, parameter: str, node: Any) -> None:
        """See ``Sink``."""
        if parameter in self._names:
            node.register_prehook(lambda gradients: self._pass(parameter, gradients))

    def _pass(self, parameter: str, gradients: Gradients) -> Gradients | None:
        (gradient,) = gradients
        if gradient is None:
            return None
        if self._borders.ends(parameter):
            self.found[parameter] = gradient
            return (None,)
        kept = self.kept.pop(parameter, None)
        if kept is None:
            return None
        if kept.dtype != gradient.dtype and self._borders.adds_casts:
            kept.view_as(gradient).add_(gradient)
            return (None,)
        if kept.dtype != gradient.dtype:
            self.reason = "gradients are kept in another dtype than they are made in"
            return (self._borders.with_kept(parameter, gradient),)
        return (kept.view_as(gradient).add_(gradient),)
