"""Attention masks that say nothing new, and heads that are repeated for nothing.

``transformers`` builds masks as tensors while it is exported, and gathers padding
with an index of every position. Rules split a causal flag, a view or grouped heads
well, and these tensors badly or not at all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tensoropt_torch.frontend.passes.constants import ConstantValues, along, stored
from tensoropt_torch.frontend.passes.nodes import (
    add_call,
    argument,
    expanded,
    target_name,
    value_of,
)

aten = torch.ops.aten

_ATTENTION = "aten.scaled_dot_product_attention.default"
_AND = frozenset({"aten.__and__.Tensor", "aten.bitwise_and.Tensor", "aten.logical_and.default"})
_REPEATS = frozenset({"aten.expand.default", "aten.unsqueeze.default"})
# Comparisons of positions, and whether those of keys come first.
_COMPARISONS = {
    "aten.le.Tensor": (torch.le, True),
    "aten.lt.Tensor": (torch.lt, True),
    "aten.ge.Tensor": (torch.ge, False),
    "aten.gt.Tensor": (torch.gt, False),
}


def indices_to_views(graph: fx.Graph) -> None:
    """``x[i, j]`` with all of ``arange`` as i and j, each along a dim of its own, is a
    view of x: ``mask[:, None, None, :]``."""
    values: ConstantValues | None = None
    for node in graph.find_nodes(op="call_function", target=aten.index.Tensor):
        values = values or ConstantValues(graph)
        dims = _dims_of_indices(values, value_of(node.args[0]), node.args[1])
        if dims is None:
            continue
        view = node.args[0]
        with graph.inserting_before(node):
            for dim in range(value_of(node).dim()):
                if dim not in dims:
                    view = add_call(graph, aten.unsqueeze.default, (view, dim), node)
        node.replace_all_uses_with(view)
        graph.erase_node(node)


def _dims_of_indices(values: ConstantValues, x: torch.Tensor, indices: Any) -> list[int] | None:
    """For each dim of x the dim of the result that holds all of it, in order."""
    found = [values.of(index) for index in indices]
    if len(found) != x.dim() or any(index is None for index in found):
        return None
    rank = max(index.dim() for index in found if index is not None)
    dims = []
    for index, size in zip(found, x.shape, strict=True):
        assert index is not None
        own = [d for d in range(index.dim()) if index.shape[d] > 1]
        if size == 1 or len(own) != 1 or index.dtype != torch.int64:
            return None
        if not torch.equal(index.flatten(), torch.arange(size, device=index.device)):
            return None
        dims.append(own[0] + rank - index.dim())
    return dims if dims == sorted(set(dims)) else None


def drop_true_operands(graph: fx.Graph) -> None:
    """``x & true`` is x."""
    nodes = [node for node in graph.nodes if target_name(node) in _AND]
    values = ConstantValues(graph) if nodes else None
    for node in nodes:
        assert values is not None
        for constant, other in (node.args, reversed(node.args)):
            value = values.of(constant)
            is_bool = isinstance(other, fx.Node) and value_of(other).dtype == torch.bool
            if value is None or not is_bool or not _is_true(value):
                continue
            with graph.inserting_before(node):
                node.replace_all_uses_with(expanded(graph, other, value_of(node).shape))
            graph.erase_node(node)
            break


def drop_plain_masks(graph: fx.Graph) -> None:
    """Attention with a constant mask that is causal gets the flag instead, and with
    one that hides nothing gets none. A mask that is too large to be computed, as those of long
    texts are, is known by the positions that it compares."""
    nodes = [node for node in graph.nodes if target_name(node) == _ATTENTION]
    values = ConstantValues(graph) if nodes else None
    for node in nodes:
        assert values is not None
        mask = argument(node, "attn_mask")
        if not isinstance(mask, fx.Node) or argument(node, "is_causal"):
            continue
        mask = _before_repeats(mask)
        value = values.of(mask)
        if _compares_positions(values, mask):
            _without_mask(node, causal=True)
        elif value is None:
            continue
        elif _is_true(value):
            _without_mask(node, causal=False)
        elif _is_causal(value):
            _without_mask(node, causal=True)


def _before_repeats(mask: fx.Node) -> fx.Node:
    """The mask whose matrices are those of this one."""
    while target_name(mask) in _REPEATS:
        given, *others = mask.all_input_nodes
        if others:
            break
        if value_of(given).dim() < 2 or value_of(given).shape[-2:] != value_of(mask).shape[-2:]:
            break
        mask = given
    return mask


def _compares_positions(values: ConstantValues, mask: fx.Node) -> bool:
    """Whether a mask shows a query just the keys up to its own: all of it follows from the
    diagonal and the one above, where positions of keys do not fall."""
    if target_name(mask) not in _COMPARISONS or value_of(mask).dim() < 2:
        return False
    rows, columns = value_of(mask).shape[-2:]
    compare, keys_first = _COMPARISONS[target_name(mask)]
    operands = [values.of(operand) for operand in mask.args]
    if rows != columns:
        return False
    keys, queries = operands if keys_first else reversed(operands)
    along_row, along_column = along(keys, -1, columns), along(queries, -2, rows)
    if along_row is None or along_column is None or not bool((along_row.diff() >= 0).all()):
        return False

    def shown(keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        return compare(keys, queries) if keys_first else compare(queries, keys)

    diagonal, above = shown(along_row, along_column), shown(along_row[1:], along_column[:-1])
    return bool(diagonal.all()) and not bool(above.any())


def _is_true(mask: torch.Tensor) -> bool:
    """Whether a mask hides nothing."""
    mask = stored(mask)
    return bool((mask if mask.dtype == torch.bool else mask == 0).all())


def _is_causal(mask: torch.Tensor) -> bool:
    """Whether a mask hides just what is later; all matrices of it are one."""
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    while mask.dim() > 2:
        if mask.shape[0] > 1 and mask.stride(0) != 0:
            return False
        mask = mask[0]
    shown = mask if mask.dtype == torch.bool else mask == 0
    hidden = ~mask if mask.dtype == torch.bool else mask == float("-inf")
    lower = torch.ones_like(shown, dtype=torch.bool).tril()
    return torch.equal(shown, lower) and torch.equal(hidden, ~lower)


def _without_mask(node: fx.Node, causal: bool) -> None:
    query, key, value = node.args[:3]
    dropout = argument(node, "dropout_p")
    kept = {k: v for k, v in node.kwargs.items() if k in ("scale", "enable_gqa")}
    node.args = (query, key, value, None, dropout, causal)
    node.kwargs = kept


def group_repeated_heads(graph: fx.Graph) -> None:
    """Attention without a mask, of keys and values whose heads were repeated for the
    queries, takes them as they were (``enable_gqa``)."""
    for node in graph.nodes:
        if target_name(node) != _ATTENTION or argument(node, "attn_mask") is not None:
            continue
        key, value = (_before_repeat(operand) for operand in node.args[1:3])
        if key is None or value is None:
            continue
        query, _, _, *rest = node.args
        node.args = (query, key, value, *rest)
        node.kwargs = {**node.kwargs, "enable_gqa": True}


def _before_repeat(operand: Any) -> fx.Node | None:
    """X of ``x[:, :, None].expand(b, h, n, ...).reshape(b, h * n, ...)``."""
    chain = []
    for name in ("aten.reshape.default", "aten.expand.default", "aten.unsqueeze.default"):
        if target_name(operand) != name:
            return None
        chain.append(operand)
        operand = operand.args[0]
    repeated, many, _ = (value_of(node).shape for node in chain)
    one = value_of(operand).shape
    if len(one) != 4 or tuple(many) != (*one[:2], many[2], *one[2:]):
        return None
    if tuple(repeated) != (one[0], one[1] * many[2], *one[2:]):
        return None
    assert isinstance(operand, fx.Node)
    return operand
