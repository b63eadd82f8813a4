"""What a strategy is, in the few words in which one names it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.telling.collectives import num_shards
from tensoropt_torch.telling.description import Described, model_at_hand
from tensoropt_torch.telling.work import PARALLELISM, WorkShare, work_shares

_LEAST_NAMED = 0.1  # a share of the work
_MOST_NAMED = 2


@dataclass(frozen=True)
class Chosen:
    """A strategy in a few words.

    Attributes:
        split: how work and parameters are split, such as ``data 16 x tensor 4, FSDP``.
        recomputed: what runs again in backward, as a share of the time of forward and backward.
        micro_batches: of a step.
    """

    split: str
    recomputed: float
    micro_batches: int

    def __str__(self) -> str:
        again = f"{self.recomputed:.0%} again" if self.recomputed >= 0.005 else ""
        parts = f"{self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        return "; ".join(text for text in (self.split, again, parts) if text)


def chosen_of(plan: Described, space: _C.SearchSpace) -> Chosen:
    """Of a plan in its search space."""
    rows = space.estimates(plan.choices.strategy(space))
    whole = sum(row.time_s for row in rows)
    again = sum(row.again_s for row in rows)
    return Chosen(
        split_in_words(work_shares(space, plan), _held(plan, space), plan.settings.num_devices),
        again / whole if whole else 0.0,
        plan.settings.micro_batches,
    )


def split_in_words(shares: Sequence[WorkShare], held: float, num_devices: int) -> str:
    """How work is split, with how parameters are kept.

    Args:
        shares: the largest first.
        held: of the parameters' bytes, the share that one device has.
        num_devices: of the mesh.
    """
    if num_devices == 1:
        return "one device"
    named = [one for one in shares[:_MOST_NAMED] if one.share >= _LEAST_NAMED]
    texts = [_mesh(one) for one in named]
    if len(named) > 1:
        texts = [f"{one.share:.0%} {text}" for one, text in zip(named, texts, strict=True)]
    return f"{' + '.join(texts)}, {_kept(held, num_devices)}"


def _mesh(share: WorkShare) -> str:
    sizes = [f"{PARALLELISM[name]} {count}" for name, count in share.parts.items()]
    return " x ".join(sizes) or "not split"


def _kept(held: float, num_devices: int) -> str:
    """Parameters: all on every device (DDP), or in parts (FSDP)."""
    parts = 1 / held if held else math.inf
    if parts < 1.05:
        return "parameters whole"
    if parts > 0.95 * num_devices:
        return "FSDP"
    return f"parameters in {parts:.0f} parts"


def _held(plan: Described, space: _C.SearchSpace) -> float:
    """The share of the parameters' bytes that one device has."""
    sizes = [size for size, _ in plan.settings.mesh_axes]
    layouts = {
        row.name: label
        for row, label in zip(space.nodes(), plan.choices.labels, strict=True)
        if not row.target
    }
    whole = kept = 0.0
    for source in model_at_hand(plan).parameters:
        value = source.placeholder.meta["val"]
        num_bytes = value.numel() * value.element_size()
        whole += num_bytes
        kept += num_bytes / num_shards(layouts[source.names[0]], sizes)
    return kept / whole if whole else 1.0
