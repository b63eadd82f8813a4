"""Where gradients of parameters meet what passes before have kept, in steps that are recorded.

Gradients that are kept end at these **borders**: what comes there is given, by name, beside the
gradients of leaves. Those that go on take what was kept, beside the gradients of outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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


class GivenAtBorders(ABC):
    """Who takes the gradients of leaves, those ``given``, and of the borders of these names, which
    are numbered after the leaves.

    Args:
        count: of leaves.
    """

    def __init__(self, given: Given, count: int, names: Sequence[str]) -> None:
        self._given = given
        self._count = count
        self._names = names

    @abstractmethod
    def end(self, name: str, gradient: torch.Tensor) -> None:
        """Takes one that ends at a border."""

    def sent(self) -> Mapping[int, torch.Tensor]:
        """Gradients of leaves that those at borders become after all, by number."""
        return {}

    def take(self, number: int, gradient: torch.Tensor) -> None:
        """See ``Given``."""
        place = number - self._count
        if place < 0:
            self._given.take(number, gradient)
        else:
            self.end(self._names[place], gradient)

    def take_those(self, numbers: Sequence[int], gradients: list[torch.Tensor | None]) -> None:
        """See ``Given``."""
        take_one_by_one(self, numbers, gradients)

    def rest(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """See ``Given``."""
        for name, gradient in zip(self._names, gradients[self._count :], strict=True):
            if gradient is not None:
                self.end(name, gradient)
        own = [*gradients[: self._count]]
        for number, gradient in self.sent().items():
            own[number] = gradient
        return self._given.rest(own)


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
