"""Buffers that batch normalisation moves where PyTorch does not see it.

A training call moves its running statistics, but not the versions of their tensors. So what a
forward before it has saved of them is used by its backward as it is then: with the new numbers,
without an error. A plan does the same, whatever parts of the buffer it takes and whatever runs
again; but what runs again gives the values of forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.passes import BUFFER, gives_views

MOST_CHANNELS = 1 << 16  # more is no running statistic, and is not copied in every step


class MovedBuffers:
    """Of a captured graph, for the graph of one rank."""

    def __init__(self, captured: CapturedModel) -> None:
        sources = [s for s in captured.sources if s.kind == "constant" and not s.is_folded]
        self._found = [s.placeholder for s in sources if may_be_moved(s.placeholder)]
        self._nodes: set[fx.Node] = set()

    def begin(self, placeholders: Mapping[fx.Node, fx.Node]) -> None:
        """``placeholders`` of the rank's graph, by those of the captured one; others than its
        own, which are copies, are not moved."""
        emitted = (placeholders[old] for old in self._found)
        self._nodes = {node for node in emitted if node.op == "placeholder"}

    def among(self, operands: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
        """Those of a call that are such buffers, or parts of them."""
        return tuple(dict.fromkeys(node for node in operands if node in self._nodes))

    def called(self, operands: Sequence[fx.Node], target: Any, result: fx.Node) -> None:
        """A call gave ``result``, which may be a view of such a buffer."""
        if self._nodes.intersection(operands) and gives_views(target):
            self._nodes.add(result)

    def part(self, source: fx.Node, result: fx.Node, program: Sequence[int]) -> bool:
        """Whether ``result`` is a part of such a buffer, which a reshard by the ``program`` makes
        of ``source``: what autograd saves of it is to be taken from the buffer in backward."""
        is_part = source in self._nodes and bool(program)
        if is_part:
            self._nodes.add(result)
        return is_part


def may_be_moved(buffer: fx.Node) -> bool:
    """Whether a buffer of the module has the shape of running statistics. Which graph of the
    module moves it, this one does not know."""
    value = buffer.meta.get("val")
    if not buffer.meta.get(BUFFER, False) or not isinstance(value, torch.Tensor):
        return False
    return value.dim() == 1 and value.is_floating_point() and value.numel() <= MOST_CHANNELS
