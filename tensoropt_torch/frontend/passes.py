"""Small passes that normalise a captured graph, in the order of ``normalise``.

Each takes an ``fx.Graph`` of ATen calls and changes it in place; the module it
describes computes the same numbers before and after.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import recurrent

Pass = Callable[[fx.Graph], None]

_ASSERTIONS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "aten._assert_async.msg",
        "aten.sym_constrain_range_for_size.default",
    }
)

_CASTS = frozenset(
    {
        "aten.to.dtype",
        "aten.to.dtype_layout",
        "aten.to.device",
        "aten.to.other",
        "aten._to_copy.default",
        "aten.type_as.default",
    }
)

_ALIASES = frozenset({"aten.detach.default", "aten.alias.default"})

# Key in the ``meta`` of placeholders that are buffers of the module.
BUFFER = "buffer"

_RESHAPES = frozenset({"aten.view.default", "aten._unsafe_view.default"})


def normalise(graph: fx.Graph) -> None:
    """Run all passes."""
    for run in PASSES:
        run(graph)
    graph.lint()


def target_name(node: fx.Node) -> str:
    """The operator a node calls, e.g. ``aten.linear.default``; else ``''``."""
    return str(node.target) if isinstance(node.target, OpOverload) else ""


def strip_assertions(graph: fx.Graph) -> None:
    """Remove checks of shapes, dtypes and devices made at capture."""
    for node in list(graph.nodes):
        guard = node.op == "call_module" and node.target == "_guards_fn"
        if guard or target_name(node) in _ASSERTIONS:
            graph.erase_node(node)


def functionalise_in_place(graph: fx.Graph) -> None:
    """Replace direct in-place calls (``relu_``) by functional ones.

    Capture rebinds the mutated tensor to the result of the call, so edges stay
    right. What is written to a buffer is copied to it at the end, once. Calls that
    change an input, a parameter, a part of a buffer, or memory that is read later
    under another name, are refused.
    """
    written: dict[fx.Node, fx.Node] = {}  # buffer -> what it holds now
    for node in list(graph.nodes):
        twin = _functional_twin(node)
        if twin is None:
            continue
        buffer = _buffer_changed_by(node, written)
        if _is_read_elsewhere(graph, node, buffer) or not (node.users or buffer):
            raise TensorOptError(
                f"operator '{node.name}' ({node.target}) changes '{node.args[0]}' in place, and "
                "the change is seen under another name; write it without the in-place call"
                f"{_source_line(node)}"
            )
        if target_name(node) == "aten.copy_.default":
            result = _replace_copy(graph, node)
        else:
            node.target = twin
            result = _keep_dtype(graph, node)
        if buffer is not None:
            written[buffer] = result
    _write_buffers(graph, written)


def _buffer_changed_by(node: fx.Node, written: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """The buffer all of which an in-place call changes, if it is one."""
    changed = node.args[0]
    while isinstance(changed, fx.Node) and target_name(changed) in _ALIASES:
        changed = changed.args[0]
    assert isinstance(changed, fx.Node)
    if changed.meta.get(BUFFER, False):
        return changed
    return next((buffer for buffer, held in written.items() if held is changed), None)


def _write_buffers(graph: fx.Graph, written: dict[fx.Node, fx.Node]) -> None:
    with graph.inserting_before(graph.output_node()):
        for buffer, value in written.items():
            copy = graph.call_function(torch.ops.aten.copy_.default, (buffer, value))
            copy.meta = {**value.meta, "val": buffer.meta["val"]}


def _functional_twin(node: fx.Node) -> OpOverload | None:
    if not isinstance(node.target, OpOverload):
        return None
    name = node.target._schema.name
    if not name.startswith("aten::") or not name.endswith("_") or name.endswith("__"):
        return None
    packet = getattr(torch.ops.aten, name.removeprefix("aten::")[:-1])
    twin = getattr(packet, node.target._overloadname)
    assert isinstance(twin, OpOverload)
    return twin


def _is_read_elsewhere(graph: fx.Graph, node: fx.Node, buffer: fx.Node | None) -> bool:
    """Whether the memory that ``node`` changes belongs to an input (other than all
    of ``buffer``), or is read after it through another node."""
    base = _owner(node.args[0])
    if base.op == "placeholder" and base is not buffer:
        return True
    nodes = list(graph.nodes)
    later = nodes[nodes.index(node) + 1 :]
    return any(
        _owner(used) is base
        for user in later
        for used in user.all_input_nodes
        if used is not node and _owner(used, stop=node) is not node
    )


def _owner(node: Any, stop: fx.Node | None = None) -> fx.Node:
    """The node that made the memory of a view; ``stop`` ends the walk."""
    assert isinstance(node, fx.Node)
    owner: fx.Node = node
    while owner is not stop and isinstance(owner.target, OpOverload):
        returns = owner.target._schema.returns
        view = bool(returns) and returns[0].alias_info is not None
        if not view or _forces_copy(owner) or not isinstance(owner.args[0], fx.Node):
            break
        owner = owner.args[0]
    return owner


def _keep_dtype(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The result of a call that was in place: that keeps the dtype of its tensor,
    the functional one promotes."""
    value = node.meta["val"]
    dtypes = [used.meta["val"].dtype for used in node.all_input_nodes]
    promoted = functools.reduce(torch.promote_types, dtypes)
    if promoted == value.dtype:
        return node
    with graph.inserting_after(node):
        cast = graph.call_function(torch.ops.aten.to.dtype, (node, value.dtype))
    cast.meta = dict(node.meta)
    node.meta = {**node.meta, "val": value.to(promoted)}
    node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
    return cast


def _replace_copy(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """``copy_`` overwrites everything: the result is the source, fitted."""
    source, value = node.args[1], node.meta["val"]
    assert isinstance(source, fx.Node)
    with graph.inserting_before(node):
        new = _expanded(graph, source, value)
        cast = graph.call_function(torch.ops.aten.to.dtype, (new, value.dtype), {"copy": True})
    cast.meta = dict(node.meta)
    node.replace_all_uses_with(cast)
    graph.erase_node(node)
    return cast


def check_running_statistics(graph: fx.Graph) -> None:
    """``batch_norm`` changes running statistics in place, which its schema does not
    say: they have to be buffers themselves, not something computed from them."""
    for node in graph.nodes:
        for statistics in _running_statistics(node):
            if not statistics.meta.get(BUFFER, False):
                raise TensorOptError(
                    f"operator '{node.name}' ({node.target}) updates running statistics "
                    f"'{statistics}' that are not a buffer of the module as it was before the "
                    f"forward pass; register them as buffers{_source_line(node)}"
                )


def _running_statistics(node: fx.Node) -> list[fx.Node]:
    """The tensors that a batch normalisation in training changes."""
    if target_name(node) != "aten.batch_norm.default" or not node.args[5]:
        return []
    return [running for running in node.args[3:5] if isinstance(running, fx.Node)]


def remove_identities(graph: fx.Graph) -> None:
    """Remove calls that return their input: alias, no-op casts, dropout(0).

    ``contiguous`` goes too: it is recorded only where it copies on the device of
    the capture, and only views need it, which become reshapes.
    """
    for node in list(graph.nodes):
        if _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_identity(node: fx.Node) -> bool:
    name = target_name(node)
    if name in ("aten.alias.default", "aten.contiguous.default"):
        return True
    if name == "aten.dropout.default":
        return bool(node.args[1] == 0 or node.args[2] is False)
    if name in _CASTS:
        assert isinstance(node.args[0], fx.Node)
        before, after = node.args[0].meta["val"], node.meta["val"]
        return bool(before.dtype == after.dtype and not _forces_copy(node))
    return False


def _forces_copy(node: fx.Node) -> bool:
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
    return bool(given.get("copy", False))


def views_to_reshapes(graph: fx.Graph) -> None:
    """A view of a local shard may need a copy where the whole did not."""
    for node in graph.nodes:
        if target_name(node) in _RESHAPES:
            node.target = torch.ops.aten.reshape.default


def broadcasts_to_expands(graph: fx.Graph) -> None:
    """Each result of ``broadcast_tensors`` is its operand, expanded if need be."""
    for node in list(graph.nodes):
        if target_name(node) != "aten.broadcast_tensors.default":
            continue
        tensors = node.args[0]
        assert isinstance(tensors, (list, tuple))
        with graph.inserting_before(node):
            results = [
                _expanded(graph, tensor, value)
                for tensor, value in zip(tensors, node.meta["val"], strict=True)
            ]
        _replace_results(graph, node, results)


def split_recurrent_stacks(graph: fx.Graph) -> None:
    """Recurrent layers become one call for each layer and direction."""
    for node in list(graph.nodes):
        if recurrent.is_stack(node):
            with graph.inserting_before(node):
                results = recurrent.layer_by_layer(graph, node)
            _replace_results(graph, node, results)


def _expanded(graph: fx.Graph, tensor: Any, value: torch.Tensor) -> fx.Node:
    assert isinstance(tensor, fx.Node)
    if tensor.meta["val"].shape == value.shape:
        return tensor
    node = graph.call_function(torch.ops.aten.expand.default, (tensor, list(value.shape)))
    node.meta = {**tensor.meta, "val": value}
    return node


def inline_no_grad_regions(graph: fx.Graph) -> None:
    """Inline ``torch.no_grad`` regions whose results need no gradient anyway."""
    for node in list(graph.nodes):
        if str(node.target) != "wrap_with_set_grad_enabled":
            continue
        enabled, body, *arguments = node.args
        assert isinstance(body, fx.Node) and graph.owning_module is not None
        module = graph.owning_module.get_submodule(str(body.target))
        assert isinstance(module, fx.GraphModule)
        replaced = dict(zip(module.graph.find_nodes(op="placeholder"), arguments, strict=True))
        with graph.inserting_before(node):
            results = _copy_body(graph, module.graph, replaced, detach=not enabled)
        _replace_results(graph, node, results)


def _copy_body(
    graph: fx.Graph, body: fx.Graph, replaced: dict[fx.Node, Any], detach: bool
) -> list[Any]:
    results: list[Any] = []
    for inner in body.nodes:
        if inner.op == "output":
            results = list(fx.map_arg(inner.args[0], lambda n: replaced[n]))
        elif inner.op != "placeholder":
            replaced[inner] = graph.node_copy(inner, lambda n: replaced[n])
    if detach:
        results = [_detached(graph, value) for value in results]
    return results


def _detached(graph: fx.Graph, value: Any) -> Any:
    if not isinstance(value, fx.Node):
        return value
    node = graph.call_function(torch.ops.aten.detach.default, (value,))
    node.meta = dict(value.meta)
    return node


def _replace_results(graph: fx.Graph, node: fx.Node, results: list[Any]) -> None:
    for user in list(node.users):
        assert user.target is operator.getitem
        index = user.args[1]
        assert isinstance(index, int)
        user.replace_all_uses_with(results[index])
        graph.erase_node(user)
    graph.erase_node(node)


def eliminate_dead_code(graph: fx.Graph) -> None:
    """Remove calls whose results nobody uses; inputs stay, and writes to buffers."""
    graph.eliminate_dead_code(is_impure_node=_has_effect)


def _has_effect(node: fx.Node) -> bool:
    return node.is_impure() or bool(_running_statistics(node))


def _source_line(node: fx.Node) -> str:
    trace = node.meta.get("stack_trace")
    lines = [line.strip() for line in str(trace).splitlines() if line.strip()]
    return f"; at {' '.join(lines[-2:])}" if trace and lines else ""


PASSES: tuple[Pass, ...] = (
    strip_assertions,
    inline_no_grad_regions,
    functionalise_in_place,
    check_running_statistics,
    remove_identities,
    broadcasts_to_expands,
    split_recurrent_stacks,
    views_to_reshapes,
    eliminate_dead_code,
)
