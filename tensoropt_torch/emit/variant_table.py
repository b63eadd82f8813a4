"""The variants of a parallel module by the kinds of calls that they are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tensoropt_torch.emit.attributes import UNCHANGED, AttributeWatch
from tensoropt_torch.emit.call_kind import CallKind
from tensoropt_torch.emit.variant import Variant
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.watching import Image, Place, same_graphs

_MOST_FOUND = 256  # kinds of calls whose variant is remembered
_NUMBERS = ("int", "float")


@dataclass(frozen=True)
class _Entry:
    """A variant for calls of a kind. Of attributes those count that its capture has read."""

    kind: CallKind
    variant: Variant
    reads: frozenset[Place]
    then: frozenset[tuple[Place, Image]]

    def is_for(self, kind: CallKind) -> bool:
        alike = replace(kind, attributes=self.kind.attributes) == self.kind
        return alike and kind.attributes.of(self.reads) == self.then


class VariantTable:
    """The variants there are.

    Args:
        attributes: looks at what their captures have read.
    """

    def __init__(self, attributes: AttributeWatch) -> None:
        self._attributes = attributes
        self._entries: list[_Entry] = []
        self._found: dict[CallKind, Variant] = {}

    @property
    def variants(self) -> list[Variant]:
        """Each once."""
        return list(dict.fromkeys(entry.variant for entry in self._entries))

    @property
    def kinds(self) -> Iterator[CallKind]:
        """For which they were made."""
        return (entry.kind for entry in self._entries)

    def add(self, kind: CallKind, variant: Variant) -> None:
        """A variant for calls of this kind, just captured.

        Raises:
            TensorOptError: it reads attributes that another variant writes.
        """
        found = variant.captured.attributes
        written = () if found.written is None else found.written.places
        self._attributes.watch(found.reads, written)
        state, reads = self._attributes.look(), frozenset(found.reads)
        kind = replace(kind, attributes=state)
        self._entries.append(_Entry(kind, variant, reads, state.of(reads)))
        self._found.clear()

    def find(self, kind: CallKind) -> Variant | None:
        """The variant for calls of this kind."""
        known = self._found.get(kind)
        if known is None:
            known = next((e.variant for e in self._entries if e.is_for(kind)), None)
            if known is not None:
                if len(self._found) >= _MOST_FOUND:
                    self._found.clear()
                self._found[kind] = known
        return known

    def check_numbers(self, kind: CallKind, names: Sequence[str]) -> None:
        """Raises TensorOptError if calls of this kind come with one number after the other."""
        for place, name in enumerate(names):
            others = [e.kind for e in self._entries if _differ_at(e.kind, kind, place)]
            if len(others) > 2:
                raise TensorOptError(
                    f"the number '{name}' is another one in call after call (now "
                    f"{kind.inputs[place][1]}), and each needs a variant of its own, of which there "  # type: ignore[index]
                    f"are {len(self.variants)}; give a tensor without dims instead, such as "
                    f"torch.tensor({kind.inputs[place][1]}), or raise max_variants"  # type: ignore[index]
                )
        changing = [place for place, image in kind.attributes.changed if image[0] in _NUMBERS]
        for attribute in changing:
            seen = {dict(e.kind.attributes.changed).get(attribute) for e in self._entries}
            if len(seen) > 2:
                raise TensorOptError(
                    f"attribute '{attribute}' is another number in call after call, and each needs "
                    f"a variant of its own, of which there are {len(self.variants)}; make it a "
                    "buffer (register_buffer) that is filled before a call, or raise max_variants"
                )


def _differ_at(one: CallKind, other: CallKind, place: int) -> bool:
    """Whether they differ in one number among the inputs, and nothing else but attributes."""
    mine, theirs = one.inputs[place : place + 1], other.inputs[place : place + 1]
    if not mine or not theirs or mine == theirs or theirs[0].__class__ is not tuple:
        return False
    inputs = (*one.inputs[:place], *theirs, *one.inputs[place + 1 :])
    changed = replace(one, inputs=inputs, attributes=UNCHANGED)
    return theirs[0][0] in _NUMBERS and changed == replace(other, attributes=UNCHANGED)  # type: ignore[index]


def earlier(captured: CapturedModel, gathered: bool, made: Sequence[Variant]) -> int:
    """Which of the variants that were made computes the same; -1: none."""
    for number, variant in enumerate(made):
        old = variant.captured
        alike = (old.in_spec, old.context, old.micro_batches)
        wanted = (captured.in_spec, captured.context, captured.micro_batches)
        if alike == wanted and same_graphs(old, captured) and _is_gathered(variant) == gathered:
            return number
    return -1


def _is_gathered(variant: Variant) -> bool:
    strategy = variant.strategy
    return strategy is not None and strategy.gathered
