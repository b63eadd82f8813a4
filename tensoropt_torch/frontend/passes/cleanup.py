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

# Calls of each element, whose result has the strides of what they are given.
_KEEPS_ORDER = frozenset(
    {
        f"aten.{name}.{kind}"
        for name in ("add", "sub", "mul", "div")
        for kind in ("Tensor", "Scalar")
    }
    | {f"aten.{name}.default" for name in ("gelu", "relu", "silu", "tanh", "sigmoid", "softmax")}
    | {"aten.softmax.int", "aten.to.dtype", "aten.alias.default", "aten.contiguous.default"}
    | {"aten.clone.default", "aten.detach.default", "aten.masked_fill.Scalar"}
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


def drop_idle_sets(graph: fx.Graph) -> None:
    """Remove what gives a tensor its own memory, as parametrisations do that forward sets."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.set_.source_Tensor):
        if node.args[0] is node.args[1]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def remove_identities(graph: fx.Graph) -> None:
    """Remove calls that return their input: alias, no-op casts.

    ``contiguous`` goes too: it is recorded only where it copies on the device of
    the capture, and only views need it, which become reshapes. But random numbers are
    drawn in the order of memory: where they are drawn for what is computed of it, it is a copy.
    """
    for node in list(graph.nodes):
        if target_name(node) == "aten.contiguous.default" and _is_drawn_for(node):
            node.target = torch.ops.aten.clone.default
            node.args, node.kwargs = node.args[:1], {"memory_format": torch.contiguous_format}
        elif _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_drawn_for(node: fx.Node) -> bool:
    """Whether numbers are drawn for each element, by calls that keep the order of memory."""
    if value_of(node.args[0]).is_contiguous():
        return False
    shape, waiting, seen = value_of(node).shape, [node], {node}
    while waiting:
        for user in waiting.pop().users:
            if user in seen or target_name(user) not in _KEEPS_ORDER | _DROPOUTS:
                continue
            if target_name(user) in _DROPOUTS:
                return True
            seen.add(user)
            if value_of(user).shape == shape:
                waiting.append(user)
    return False


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
