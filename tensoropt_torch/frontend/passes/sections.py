"""Layers whose outputs are cut into unequal sections.

The queries, keys and values of grouped heads come from one weight: ``[..., q + 2 * kv]`` is
cut into ``q``, ``kv`` and ``kv``. Equal blocks do not hold the heads of one rank together
(``fused.py``), so such a layer becomes one call that makes the sections, each of which may be
split by heads.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx

from tensoropt_torch.frontend.passes.nodes import (
    SPLITS,
    add_call,
    argument,
    slice_extent,
    target_name,
    value_of,
)
from tensoropt_torch.operators import OPS


class _Section(NamedTuple):
    start: int
    size: int
    node: fx.Node  # what takes it


def make_sections(graph: fx.Graph) -> None:
    """Linear layers all of whose outputs are cut into sections, whose sizes have a divisor in
    common, make these sections."""
    for layer in graph.find_nodes(
        op="call_function", target=torch.ops.aten.linear.default, sort=True
    ):
        sections = sorted(_sections(layer), key=lambda section: section.start)
        if not _are_all(sections, value_of(layer).shape[-1]):
            continue
        if math.gcd(*(section.size for section in sections)) > 1:
            _rewrite(graph, layer, sections)


def _sections(layer: fx.Node) -> Iterator[_Section]:
    """Those that users take; one of no size where some user takes something else."""
    other = _Section(0, 0, layer)
    last = value_of(layer).dim() - 1
    if last < 1 or value_of(argument(layer, "weight")).dim() != 2:
        yield other
    for user in layer.users:
        name = target_name(user)
        if name in SPLITS and argument(user, "dim") % (last + 1) == last:
            sizes = [piece.shape[last] for piece in user.meta["val"]]
            for piece in user.users:
                index: Any = piece.args[1]
                yield _Section(sum(sizes[:index]), sizes[index], piece)
        elif (
            name == "aten.slice.Tensor"
            and argument(user, "dim") % (last + 1) == last
            and argument(user, "step") == 1
        ):
            yield _Section(*slice_extent(user, value_of(layer).shape[last], last), user)
        else:
            yield other


def _are_all(sections: list[_Section], size: int) -> bool:
    """Whether there are several, one after the other, and nothing else."""
    end = 0
    for section in sections:
        if section.start != end or section.size == 0:
            return False
        end += section.size
    return len(sections) > 1 and end == size


def _rewrite(graph: fx.Graph, layer: fx.Node, sections: list[_Section]) -> None:
    operands = [argument(layer, name) for name in ("input", "weight", "bias")]
    starts, sizes = ([section[i] for section in sections] for i in range(2))
    target = OPS.linear_sections.default
    with graph.inserting_before(layer):
        made = add_call(graph, target, (*operands, starts, sizes), layer)
        for index, section in enumerate(sections):
            piece = add_call(graph, operator.getitem, (made, index), section.node)
            section.node.replace_all_uses_with(piece)
