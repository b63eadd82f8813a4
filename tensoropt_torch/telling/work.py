"""What splits the work of a plan, in the words in which one speaks of strategies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.telling.description import Described

# What splits an operator (csrc/describe/work_splits.h), and what that is called.
PARALLELISM = {"batch": "data", "features": "tensor", "positions": "sequence"}

# Shares of the work that a sentence names, and the least of them.
_MOST_NAMED = 3
_LEAST_NAMED = 0.005


@dataclass(frozen=True)
class WorkShare:
    """Operators whose work is split alike.

    Attributes:
        parts: into how many parts the batch, features (dims that weights have) and positions
            (other dims, as of a sequence or an image) are cut; those that are not are left out.
        share: of the FLOPs of all operators, forward and backward.
    """

    parts: Mapping[str, int]
    share: float

    def in_words(self, num_devices: int) -> str:
        """E.g. ``by batch over 4 and by features over 2 (data x tensor parallelism)``."""
        if not self.parts:
            return "not at all"
        cuts = " and ".join(f"by {name} over {count}" for name, count in self.parts.items())
        kinds = " x ".join(PARALLELISM[name] for name in self.parts)
        repeated = num_devices // math.prod(self.parts.values())
        more = f", repeated on {repeated} devices" if repeated > 1 else ""
        return f"{cuts} ({kinds} parallelism{more})"


def work_shares(space: _C.SearchSpace, plan: Described) -> tuple[WorkShare, ...]:
    """All different ways in which operators are split, the one with the most work first."""
    sizes = [size for size, _ in plan.settings.mesh_axes]
    return shares_of(space.work(plan.choices.strategy(space)), sizes)


def shares_of(rows: Sequence[_C.WorkRow], sizes: Sequence[int]) -> tuple[WorkShare, ...]:
    """The same of the work of operators, on a mesh with axes of these sizes."""
    flops: defaultdict[tuple[tuple[str, int], ...], float] = defaultdict(float)
    for row in rows:
        flops[parts_of(row.splits, sizes)] += row.flops
    whole = max(1.0, sum(flops.values()))
    most_first = sorted(flops.items(), key=lambda found: -found[1])
    return tuple(WorkShare(dict(parts), work / whole) for parts, work in most_first)


def parts_of(splits: Sequence[str], sizes: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """By what splits an operator, into how many parts, where these are several."""
    found = {
        kind: math.prod(size for split, size in zip(splits, sizes, strict=True) if split == kind)
        for kind in PARALLELISM
    }
    return tuple((kind, count) for kind, count in found.items() if count > 1)


def work_in_words(shares: Sequence[WorkShare], num_devices: int) -> str:
    """The work that is split, in one clause."""
    if num_devices == 1:
        return "The work is done by one device"
    named = [one for one in shares[:_MOST_NAMED] if one.share >= _LEAST_NAMED]
    if not named:
        return "No operator has work that is counted"
    first, *others = named
    rest = 1 - sum(one.share for one in named)
    if not others and rest < _LEAST_NAMED:
        return f"The work is split {first.in_words(num_devices)}"
    texts = [f"{first.share:.0%} of the work is split {first.in_words(num_devices)}"]
    texts += [f"{one.share:.0%} {one.in_words(num_devices)}" for one in others]
    if rest >= _LEAST_NAMED:
        texts.append(f"{rest:.0%} otherwise")
    return ", ".join(texts)
