"""What makes a graph that runs several times in a step one step of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import fx

# How the outputs of micro-batches make one of the batch: they are added up, or joined along a
# dim, or each of them is what the batch gives.
Join = Literal["sum", "same"] | int


@dataclass(frozen=True)
class MicroBatching:
    """A captured graph is that of one of several micro-batches.

    Its loss is its share of that of the batch: the sum over micro-batches is the loss. What
    such a share has to know of the other micro-batches, such as the number of all valid
    targets, does not depend on parameters. These ``totals`` are inputs of the graph.

    Attributes:
        count: how many micro-batches make the batch.
        split: which inputs are cut along dim 0, in the order of the inputs; the others are
            the same in all micro-batches.
        joins: of the outputs, without their containers.
        loss: which output is differentiated; -1: whichever a loss is computed of.
        totals: gives the totals, in the order of the sources of this kind.
        total_sources: the numbers of the sources that ``totals`` takes, of the whole batch.
    """

    count: int
    split: tuple[bool, ...]
    joins: tuple[Join, ...]
    loss: int
    totals: fx.GraphModule | None = None
    total_sources: tuple[int, ...] = ()
