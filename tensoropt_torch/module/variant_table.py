"""The variants of a parallel module by the kinds of calls that they are for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensoropt_torch.calls.attribute_watch import UNCHANGED, AttributeWatch
from tensoropt_torch.calls.call_kind import CallKind
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.watching import Lifted, Numbers, Place, same_graphs
from tensoropt_torch.module.variant import Variant

_MOST_FOUND = 256  # kinds of calls whose variant is remembered
_NUMBERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float}
_FOLLOWED = {**_NUMBERS, "str": ast.literal_eval}  # of inputs; of attributes numbers only


@dataclass(frozen=True)
class Match:
    """A variant that is for a call.

    Attributes:
        kind: what the call has in common with others that run it.
        numbers: what the graph takes besides.
    """

    variant: Variant
    kind: CallKind
    numbers: tuple[Any, ...] = ()


@dataclass(frozen=True)
class _Entry:
    """A variant for calls of a kind. Of attributes those count that its capture has read, and
    of ``numbers`` only what their guards say."""

    kind: CallKind
    variant: Variant
    reads: frozenset[Place]
    numbers: Numbers | None = None

    @property
    def keys(self) -> tuple[Lifted, ...]:
        """The numbers that do not count."""
        return () if self.numbers is None else self.numbers.keys

    def match(self, kind: CallKind, attributes: AttributeWatch) -> Match | None:
        """If the variant is for such calls."""
        if self._rest(kind) != self._rest(self.kind):
            return None
        if self.numbers is None:
            return Match(self.variant, kind)
        mine, found = (_numbers(k, self.keys, attributes) for k in (self.kind, kind))
        types = [[type(value) for value in values.values()] for values in (mine, found)]
        if types[0] != types[1] or not self.numbers.hold_for(found):
            return None
        return Match(self.variant, self.kind, self.numbers.of(found))

    def numbers_apart(self, kind: CallKind, attributes: AttributeWatch) -> set[Lifted]:
        """The numbers that are others in such calls, if nothing else is."""
        places = range(min(len(kind.inputs), len(self.kind.inputs)))
        apart: set[Lifted] = {p for p in places if self.kind.inputs[p] != kind.inputs[p]}
        then, now = (k.attributes.of(self.reads) for k in (self.kind, kind))
        apart |= {place for place, _ in then ^ now}
        keys = tuple(apart)
        mine, found = (_numbers(k, keys, attributes) for k in (self.kind, kind))
        if len(mine) < len(keys) or len(found) < len(keys):
            return set()
        return apart if self._rest(kind, keys) == self._rest(self.kind, keys) else set()

    def _rest(self, kind: CallKind, keys: tuple[Lifted, ...] | None = None) -> Any:
        """What counts of a kind besides numbers, by default those that the variant takes."""
        keys = self.keys if keys is None else keys
        inputs = tuple(None if n in keys else item for n, item in enumerate(kind.inputs))
        changed = kind.attributes.of(self.reads - {k for k in keys if isinstance(k, Place)})
        return replace(kind, inputs=inputs, attributes=UNCHANGED), changed  # type: ignore[arg-type]


def _numbers(
    kind: CallKind, keys: Sequence[Lifted], attributes: AttributeWatch
) -> dict[Lifted, Any]:
    """What numbers and texts are in calls of a kind, without what is neither."""
    changed = dict(kind.attributes.changed)
    found: dict[Lifted, Any] = {}
    for key in keys:
        if isinstance(key, Place):
            image, known = changed.get(key, attributes.first(key)), _NUMBERS
        else:
            image, known = kind.inputs[key], _FOLLOWED
        if isinstance(image, tuple) and image[0] in known:
            found[key] = known[image[0]](image[1])
    return found


class VariantTable:
    """The variants there are.

    Args:
        attributes: looks at what their captures have read.
    """

    def __init__(self, attributes: AttributeWatch) -> None:
        self._attributes = attributes
        self._entries: list[_Entry] = []
        self._found: dict[CallKind, Match] = {}
        self._fixed: set[frozenset[Lifted]] = set()

    @property
    def variants(self) -> list[Variant]:
        """The variants, each once."""
        return list(dict.fromkeys(entry.variant for entry in self._entries))

    @property
    def kinds(self) -> Iterator[CallKind]:
        """The kinds of calls for which variants were made."""
        return (entry.kind for entry in self._entries)

    def add(self, kind: CallKind, variant: Variant, numbers: Numbers | None = None) -> None:
        """A variant for calls of this kind, just captured.

        Raises:
            TensorOptError: it reads attributes that another variant writes.
        """
        found = variant.captured.attributes
        written = () if found.written is None else found.written.places
        self._attributes.watch(found.reads, written, found.fields)
        kind = replace(kind, attributes=self._attributes.look())
        self._entries.append(_Entry(kind, variant, frozenset(found.reads), numbers))
        self._found.clear()

    def find(self, kind: CallKind) -> Match | None:
        """The variant for calls of this kind."""
        known = self._found.get(kind)
        if known is None:
            matches = (entry.match(kind, self._attributes) for entry in self._entries)
            known = next((match for match in matches if match is not None), None)
            if known is not None:
                if len(self._found) >= _MOST_FOUND:
                    self._found.clear()
                self._found[kind] = known
        return known

    def numbers_apart(self, kind: CallKind) -> list[Lifted]:
        """The numbers by which such calls differ from those that there are variants for, unless
        it turned out that they cannot be inputs of a graph."""
        found: set[Lifted] = set()
        for entry in self._entries:
            found |= entry.numbers_apart(kind, self._attributes)
        return [] if frozenset(found) in self._fixed else sorted(found, key=str)

    def fix(self, keys: Sequence[Lifted]) -> None:
        """Notes that these cannot be inputs of a graph."""
        self._fixed.add(frozenset(keys))

    def check_numbers(self, kind: CallKind, names: Sequence[str]) -> None:
        """Raises TensorOptError if calls of this kind come with one number after the other."""
        for place, name in enumerate(names):
            others = [e.kind for e in self._entries if _differ_at(e.kind, kind, place)]
            if len(others) > 2:
                sort, number = kind.inputs[place]  # type: ignore[misc]
                if sort == "str":
                    raise TensorOptError(
                        f"the text '{name}' is another one in call after call (now {number}), and "
                        "forward reads it, so that each needs a variant of its own, of which there "
                        f"are {len(self.variants)}; give a tensor of what it says instead, or "
                        "raise max_variants"
                    )
                raise TensorOptError(
                    f"the number '{name}' is another one in call after call (now {number}), and "
                    "each needs a variant of its own, of which there are "
                    f"{len(self.variants)}; give a tensor without dims instead, such as "
                    f"torch.tensor({number}), or raise max_variants"
                )
        for attribute, image in kind.attributes.changed:
            seen = {dict(entry.kind.attributes.changed).get(attribute) for entry in self._entries}
            if image[0] in _NUMBERS and len(seen) > 2:
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
    return theirs[0][0] in _FOLLOWED and changed == replace(other, attributes=UNCHANGED)


def earlier(captured: CapturedModel, gathered: bool, made: Sequence[Variant]) -> int:
    """Which of the variants that were made computes the same; -1: none."""
    for number, variant in enumerate(made):
        old = replace(variant.captured, constants=variant.constants)
        alike = (old.in_spec, old.context, old.micro_batches)
        wanted = (captured.in_spec, captured.context, captured.micro_batches)
        same = same_graphs(old, captured) and _written(old) == _written(captured)
        if alike == wanted and same and _is_gathered(variant) == gathered:
            return number
    return -1


def _is_gathered(variant: Variant) -> bool:
    strategy = variant.strategy
    return strategy is not None and strategy.gathered


def _written(captured: CapturedModel) -> str:
    """What gets into attributes after a call, of what is no tensor."""
    written = captured.attributes.written
    return "" if written is None else repr(written)
