"""Small passes that normalise a captured graph, in the order of ``normalise``.

Each takes an ``fx.Graph`` of ATen calls and changes it in place; the module it
describes computes the same numbers before and after.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.errors import TensorOptError

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
    right. Calls whose result nobody reads change a buffer or another tensor
    through a view; these are refused.
    """
    for node in graph.nodes:
        functional = _functional_twin(node)
        if functional is None:
            continue
        base = node.args[0]
        if not node.users or (isinstance(base, fx.Node) and base.op == "placeholder"):
            raise TensorOptError(
                f"operator '{node.name}' ({node.target}) changes "
                f"'{base}' in place, which a captured graph cannot express; "
                f"write it without the in-place call{_source_line(node)}"
            )
        node.target = functional


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


def remove_identities(graph: fx.Graph) -> None:
    """Remove calls that return their input: alias, no-op casts, dropout(0)."""
    for node in list(graph.nodes):
        if _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_identity(node: fx.Node) -> bool:
    name = target_name(node)
    if name == "aten.alias.default":
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
    """Remove calls whose results nobody uses; inputs stay."""
    graph.eliminate_dead_code()


def _source_line(node: fx.Node) -> str:
    trace = node.meta.get("stack_trace")
    lines = [line.strip() for line in str(trace).splitlines() if line.strip()]
    return f"; at {' '.join(lines[-2:])}" if trace and lines else ""


PASSES: tuple[Pass, ...] = (
    strip_assertions,
    inline_no_grad_regions,
    functionalise_in_place,
    remove_identities,
    broadcasts_to_expands,
    views_to_reshapes,
    eliminate_dead_code,
)
