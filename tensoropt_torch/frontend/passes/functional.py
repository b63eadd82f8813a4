"""In-place calls become functional ones.

Memory has one owner, the call or placeholder that made it, and any number of views.
A call that changes it makes a new tensor, of which all views are made again when
they are read the next time. So changes are seen under every name, as in the module.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes.aliases import is_view, operator_base, write_back
from tensoropt_torch.frontend.passes.nodes import (
    BUFFER,
    IN_PLACE,
    WITHOUT_GRAD,
    add_call,
    argument,
    changes_memory,
    expanded,
    is_python_call,
    makes_memory,
    running_statistics,
    source_line,
    target_name,
    value_of,
)
from tensoropt_torch.frontend.passes.random_fills import drawing_call

aten = torch.ops.aten

# Of calls whose counterparts have other overloads of their names.
_OVERLOADS = {
    "aten.floor_divide_.Tensor": "default",
    "aten.float_power_.Scalar": "Tensor_Scalar",
    "aten.float_power_.Tensor": "Tensor_Tensor",
    "aten.pow_.Scalar": "Tensor_Scalar",
    "aten.pow_.Tensor": "Tensor_Tensor",
}


def functionalise_in_place(graph: fx.Graph) -> None:
    """Replace in-place calls (``relu_``, ``x[:, 0] = 0``) by functional ones.

    What is written to a buffer is copied to it at the end, once. Calls that change
    an input or a parameter, or whose gradient the result would not have, are refused.
    """
    _Functionaliser(graph).run()


def check_running_statistics(graph: fx.Graph) -> None:
    """``batch_norm`` changes running statistics in place, which its schema does not
    say: they have to be buffers themselves, not something computed from them."""
    for node in graph.nodes:
        for statistics in running_statistics(node):
            if not statistics.meta.get(BUFFER, False):
                raise TensorOptError(
                    f"operator '{node.name}' ({node.target}) updates running statistics "
                    f"'{statistics}' that are not a buffer of the module as it was before the "
                    f"forward pass; register them as buffers{source_line(node)}"
                )


@dataclass(frozen=True)
class _Name:
    """What a node means: the memory of ``owner`` seen through ``views``, of which the
    node holds the contents as they were at ``version``."""

    owner: fx.Node
    views: tuple[fx.Node, ...]
    version: int


class _Functionaliser:
    """Goes through the calls in order, keeping what the memory of each owner holds."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._names: dict[fx.Node, _Name] = {}
        self._latest: dict[fx.Node, fx.Node] = {}
        self._versions: dict[fx.Node, int] = {}
        self._seen_by: dict[fx.Node, fx.Node] = {}  # calls that may give the memory of an owner

    def run(self) -> None:
        for node in list(self._graph.nodes):
            with self._graph.inserting_before(node):
                node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), self._current)
                if changes_memory(node):
                    self._change(node)
                elif node.op == "call_function" and is_view(node):
                    name = self._name_of(node.args[0])
                    self._names[node] = _Name(name.owner, (*name.views, node), name.version)
                elif is_python_call(node) and not makes_memory(node):
                    for operand in node.all_input_nodes:
                        self._seen_by[self._name_of(operand).owner] = node
        with self._graph.inserting_before(self._graph.output_node()):
            self._write_buffers()

    def _name_of(self, node: Any) -> _Name:
        assert isinstance(node, fx.Node)
        return self._names.get(node, _Name(node, (), 0))

    def _current(self, node: fx.Node) -> fx.Node:
        """A node that holds what ``node`` means now."""
        name = self._name_of(node)
        version = self._versions.get(name.owner, 0)
        if name.version == version:
            return node
        current = self._latest[name.owner]
        for view in name.views:
            current = self._again(view, current)
        self._names[current] = _Name(name.owner, name.views, version)
        return current

    def _again(self, view: fx.Node, source: fx.Node) -> fx.Node:
        assert callable(view.target)
        return add_call(self._graph, view.target, (source, *view.args[1:]), view, view.kwargs)

    def _change(self, node: fx.Node) -> None:
        name = self._name_of(node.args[0])
        self._check(node, name)
        new = self._functional(node)
        version = self._versions.get(name.owner, 0) + 1
        whole = self._whole(node, name, new)
        self._latest[name.owner], self._versions[name.owner] = whole, version
        self._names[whole] = _Name(name.owner, (), version)
        self._names[new] = _Name(name.owner, name.views, version)
        node.replace_all_uses_with(new)
        self._graph.erase_node(node)

    def _functional(self, node: fx.Node) -> fx.Node:
        """The call that computes what ``node`` writes, in the dtype of its memory."""
        name, (changed, *rest) = operator_base(node), node.args
        value = value_of(changed)
        if name in ("copy_", "fill_") and isinstance(rest[0], fx.Node):
            source = expanded(self._graph, rest[0], value.shape)
            casting = (source, value.dtype)
            return add_call(self._graph, aten.to.dtype, casting, node, {"copy": True})
        if name in ("zero_", "fill_"):
            args = (changed, rest[0] if rest else 0)
            return add_call(self._graph, aten.full_like.default, args, node)
        if name == "fill_diagonal_":
            return self._filled_diagonal(node, value)
        fill = drawing_call(node)
        if fill is not None:
            return add_call(self._graph, *fill, node)
        new = add_call(self._graph, _functional_twin(node), node.args, node, node.kwargs)
        if value_of(new).dtype == value.dtype:
            new.meta[IN_PLACE] = node.target
            return new
        return add_call(self._graph, aten.to.dtype, (new, value.dtype), node)

    def _filled_diagonal(self, node: fx.Node, value: torch.Tensor) -> fx.Node:
        """``masked_fill`` where ``eye`` is."""
        if value.dim() != 2 or (argument(node, "wrap") and len(value) > value.shape[1]):
            raise _refusal(node, "and is no matrix, or wraps around")
        form = {"dtype": torch.bool, "device": value.device}
        mask = add_call(self._graph, aten.eye.m, tuple(value.shape), node, form)
        args = (node.args[0], mask, argument(node, "fill_value"))
        return add_call(self._graph, aten.masked_fill.Scalar, args, node)

    def _whole(self, node: fx.Node, name: _Name, new: fx.Node) -> fx.Node:
        """What the owner holds when the view called ``name`` has become ``new``."""
        if not name.views:
            return new
        wholes = [self._latest.get(name.owner, name.owner)]
        for view in name.views[:-1]:
            wholes.append(self._again(view, wholes[-1]))
        steps = list(zip(name.views, wholes, strict=True))
        while steps:
            view, whole = steps.pop()
            if view.target is operator.getitem:  # of a split: that is one view with it
                _, whole = steps.pop()
            written = write_back(self._graph, view, whole, new)
            if written is None:
                raise _refusal(node, f"through '{view.target}', which cannot be undone")
            new = written
        return new

    def _check(self, node: fx.Node, name: _Name) -> None:
        owner = name.owner
        if owner.op == "placeholder" and not owner.meta.get(BUFFER, False):
            if operator_base(node) == "embedding_renorm_":
                raise _max_norm(node, owner)
            raise _refusal(node, "which is an input or a parameter")
        if owner.op == "call_function" and not (_is_unsafe(owner) or makes_memory(owner)):
            raise _refusal(node, "which may be another name of that operator's own operand")
        if owner in self._seen_by:
            seen_by = self._seen_by[owner].name
            raise _refusal(node, f"which what '{seen_by}' gave may be another name of")
        hidden = node.meta.get(WITHOUT_GRAD, False) or any(
            operator_base(view) == "detach" for view in name.views
        )
        if hidden and self._latest.get(owner, owner) in trained_nodes(self._graph):
            raise _refusal(node, "without its gradient")

    def _write_buffers(self) -> None:
        for owner, value in self._latest.items():
            if owner.meta.get(BUFFER, False):
                add_call(self._graph, aten.copy_.default, (owner, value), value)


def _is_unsafe(node: fx.Node) -> bool:
    """Whether it is what ``unsafe_chunk`` and its like give: parts of a tensor that nothing
    else reads."""
    call = node.args[0] if node.target is operator.getitem else node
    return isinstance(call, fx.Node) and operator_base(call).startswith("unsafe_")


def _refusal(node: fx.Node, reason: str) -> TensorOptError:
    return TensorOptError(
        f"operator '{node.name}' ({node.target}) changes '{node.args[0]}' in place, {reason}; "
        f"write it without the in-place call{source_line(node)}"
    )


def _max_norm(node: fx.Node, weight: fx.Node) -> TensorOptError:
    return TensorOptError(
        f"operator '{node.name}' ({node.target}): an embedding with max_norm={node.args[2]} "
        f"renormalises rows of its weight '{weight}' in the forward pass, and a forward pass must "
        "not change parameters; leave max_norm out, and before each step, under torch.no_grad(), "
        "renormalise the weight: weight.mul_((max_norm / (weight.norm(dim=1, keepdim=True) + "
        f"1e-7)).clamp(max=1)){source_line(node)}"
    )


def _functional_twin(node: fx.Node) -> OpOverload:
    """``aten.add_.Tensor`` -> ``aten.add.Tensor``, ``__iand__`` -> ``__and__``."""
    assert isinstance(node.target, OpOverload)
    name = node.target._schema.name.removeprefix("aten::")
    twin = name.replace("__i", "__", 1) if name.endswith("__") else name.removesuffix("_")
    overload = _OVERLOADS.get(target_name(node), node.target._overloadname)
    found = getattr(getattr(aten, twin, None), overload, None)
    if not isinstance(found, OpOverload):
        raise _refusal(node, "which has no counterpart that is not in place")
    return found


def trained_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The nodes through which gradients flow."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("val")
            trained = isinstance(value, torch.Tensor) and value.requires_grad
            trained = trained and not node.meta.get(BUFFER, False)
        else:
            cut = operator_base(node) == "detach" or node.meta.get(WITHOUT_GRAD, False)
            trained = not cut and any(used in found for used in node.all_input_nodes)
        if trained:
            found.add(node)
    return found
