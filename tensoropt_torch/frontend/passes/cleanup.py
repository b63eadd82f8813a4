"""Passes that remove what computes nothing."""

from __future__ import annotations

import torch
from torch import fx

from tensoropt_torch.frontend.passes.nodes import (
    CASTS,
    forces_copy,
    running_statistics,
    target_name,
    value_of,
)

_ASSERTIONS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "aten._assert_async.msg",
        "aten.sym_constrain_range_for_size.default",
    }
)

_DROPOUTS = frozenset(
    f"aten.{kind}dropout{in_place}.default"
    for kind in ("", "feature_", "alpha_", "feature_alpha_")
    for in_place in ("", "_")
)


def complete_users(graph: fx.Graph) -> None:
    """What an exported graph leaves out: of a region of ``torch.no_grad`` that was captured
    without gradients, and is no region then, nodes may not know who uses them."""
    for node in graph.nodes:
        for operand in node.all_input_nodes:
            operand.users.setdefault(node)


def strip_assertions(graph: fx.Graph) -> None:
    """Remove checks of shapes, dtypes and devices made at capture."""
    for node in list(graph.nodes):
        guard = node.op == "call_module" and node.target == "_guards_fn"
        if guard or target_name(node) in _ASSERTIONS:
            graph.erase_node(node)


def drop_idle_dropouts(graph: fx.Graph) -> None:
    """Remove dropouts of evaluation and of nothing: they give their operand itself, though
    their schema does not say so."""
    for node in list(graph.nodes):
        is_idle = target_name(node) in _DROPOUTS and (node.args[1] == 0 or node.args[2] is False)
        if is_idle:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def remove_identities(graph: fx.Graph) -> None:
    """Remove calls that return their input: alias, no-op casts.

    ``contiguous`` goes too: it is recorded only where it copies on the device of
    the capture, and only views need it, which become reshapes.
    """
    for node in list(graph.nodes):
        if _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_identity(node: fx.Node) -> bool:
    name = target_name(node)
    if name in ("aten.alias.default", "aten.contiguous.default", "aten.lift_fresh_copy.default"):
        return True
    if name == "aten.expand.default":
        return value_of(node).shape == value_of(node.args[0]).shape
    if name in CASTS:
        same = value_of(node).dtype == value_of(node.args[0]).dtype
        return same and not forces_copy(node)
    return False


def gives_its_operand(node: fx.Node) -> bool:
    """Whether a call returns the very tensor that it is given, with its gradient: a cast to what
    it is, ``contiguous`` of what is, dropout in evaluation."""
    name = target_name(node)
    if name in _DROPOUTS:
        return bool(node.args[1] == 0 or node.args[2] is False)
    if name == "aten.contiguous.default":
        return value_of(node.args[0]).is_contiguous()
    if name not in CASTS - {"aten._to_copy.default"} or forces_copy(node):
        return False
    old, new = value_of(node.args[0]), value_of(node)
    return (old.dtype, old.device, old.stride()) == (new.dtype, new.device, new.stride())


def drop_empty_parts(graph: fx.Graph) -> None:
    """Empty caches of keys and values are concatenated with what is there: that is all."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
        parts = [part for part in node.args[0] if not _is_empty(value_of(part))]
        if not parts or parts[0].op == "placeholder":
            continue
        if len(parts) == 1 and value_of(parts[0]).dtype == value_of(node).dtype:
            node.replace_all_uses_with(parts[0])
            graph.erase_node(node)
        else:
            node.args = (parts, *node.args[1:])


def _is_empty(part: torch.Tensor) -> bool:
    """Whether it is a row of nothing; sizes that depend on values are not asked."""
    return part.dim() == 1 and isinstance(part.shape[0], int) and part.shape[0] == 0


def eliminate_dead_code(graph: fx.Graph) -> None:
    """Remove calls whose results nobody uses; inputs stay, and writes to buffers."""
    graph.eliminate_dead_code(is_impure_node=_has_effect)


def _has_effect(node: fx.Node) -> bool:
    return node.is_impure() or bool(running_statistics(node))
