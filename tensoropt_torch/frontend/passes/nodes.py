"""What the passes share: reading and making nodes of an ``fx.Graph``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

Pass = Callable[[fx.Graph], None]

# Keys in the ``meta`` of nodes, and names of operators.
BUFFER = "buffer"  # of placeholders that are buffers of the module
FOLDED = "folded"  # of placeholders that a pass added: the tensor they stand for
IN_PLACE = "in_place"  # of calls that the module makes in place: by which operator
PYTHON = "tensoropt_python"  # the namespace of operators that are calls of Python
NUMBER = "python_call"  # their keyword: what is called, by its number in this process
WITHOUT_GRAD = "without_grad"  # of calls that were made under ``torch.no_grad``

CASTS = frozenset(
    {
        "aten.to.dtype",
        "aten.to.dtype_layout",
        "aten.to.device",
        "aten.to.other",
        "aten._to_copy.default",
        "aten.type_as.default",
    }
)
# Cuts along a dim.
SPLITS = frozenset(
    {
        "aten.split.Tensor",
        "aten.split.sizes",
        "aten.split_with_sizes.default",
        "aten.unsafe_split.Tensor",
        "aten.unsafe_split_with_sizes.default",
        "aten.chunk.default",
        "aten.unsafe_chunk.default",
        "aten.tensor_split.sections",
        "aten.tensor_split.indices",
    }
)

_NOT_THE_USERS = (f'File "{Path(torch.__file__).parent}', 'File "<')


def target_name(node: fx.Node) -> str:
    """The operator a node calls, e.g. ``aten.linear.default``; else ``''``."""
    return _name_of(node.target) if isinstance(node.target, OpOverload) else ""


@cache
def _name_of(operator: OpOverload) -> str:
    return str(operator)


def is_python_call(node: fx.Node) -> bool:
    """Whether a call runs Python of the user: an ``autograd.Function``, a hook."""
    return isinstance(node.target, OpOverload) and node.target.namespace == PYTHON


def is_parameter(node: fx.Node) -> bool:
    """Whether a node is a parameter of the module, as the graph gets it."""
    return node.op == "placeholder" and node.meta.get(BUFFER) is False


def is_cast(node: fx.Node) -> bool:
    """Whether a call only changes the dtype of its first operand, if anything."""
    return target_name(node) in CASTS


def order_of(node: fx.Node) -> list[int] | None:
    """Of the dims of its operand that a permutation has; None: it is none."""
    name = target_name(node)
    if name not in ("aten.transpose.int", "aten.permute.default"):
        return None
    rank = value_of(node).dim()
    if name == "aten.permute.default":
        return [dim % rank for dim in argument(node, "dims")]
    order = list(range(rank))
    if rank:
        first, second = argument(node, "dim0"), argument(node, "dim1")
        order[first], order[second] = order[second], order[first]
    return order


def value_of(node: Any) -> torch.Tensor:
    """The fake tensor that stands for what a node computes."""
    assert isinstance(node, fx.Node)
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


def argument(node: fx.Node, name: str) -> Any:
    """An argument of a call by its name in the schema, or its default."""
    assert isinstance(node.target, OpOverload)
    for position, declared in enumerate(node.target._schema.arguments):
        if declared.name == name:
            default = declared.default_value if declared.has_default_value() else None
            given = node.args[position] if position < len(node.args) else default
            return node.kwargs.get(name, given)
    raise AssertionError(f"{node.target} has no argument '{name}'")


def computed(
    target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """The fake result of a call whose arguments are nodes."""
    with torch.no_grad():
        return target(
            *fx.map_arg(tuple(args), lambda node: node.meta["val"]),
            **fx.map_arg(dict(kwargs or {}), lambda node: node.meta["val"]),
        )


def makes_memory(node: Any) -> bool:
    """Whether a call gives tensors with memory of their own, of none of its operands, whatever
    its schema says."""
    if node.target is operator.getitem:
        node = node.args[0]
        assert isinstance(node, fx.Node)
    assert callable(node.target)
    given = [value for operand in node.all_input_nodes for value in _tensors(operand.meta["val"])]
    places = {value.untyped_storage()._cdata for value in given}
    made = _tensors(computed(node.target, node.args, node.kwargs))
    return all(value.untyped_storage()._cdata not in places for value in made)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def add_call(
    graph: fx.Graph,
    target: Callable[..., Any],
    args: Sequence[Any],
    like: fx.Node,
    kwargs: Mapping[str, Any] | None = None,
) -> fx.Node:
    """A new call where ``graph`` inserts, with the module path and source of ``like``."""
    node = graph.call_function(target, tuple(args), dict(kwargs or {}))
    node.meta = {**like.meta, "val": computed(target, args, kwargs)}
    return node


def expanded(graph: fx.Graph, tensor: fx.Node, sizes: Sequence[int]) -> fx.Node:
    """The tensor, expanded where ``graph`` inserts if it has not these sizes yet."""
    if list(value_of(tensor).shape) == list(sizes):
        return tensor
    return add_call(graph, torch.ops.aten.expand.default, (tensor, list(sizes)), tensor)


def reshaped(graph: fx.Graph, tensor: fx.Node, sizes: Sequence[int], like: fx.Node) -> fx.Node:
    """The tensor, reshaped where ``graph`` inserts if it has not these sizes yet."""
    if list(value_of(tensor).shape) == list(sizes):
        return tensor
    return add_call(graph, torch.ops.aten.reshape.default, (tensor, list(sizes)), like)


def replace_results(graph: fx.Graph, node: fx.Node, results: Sequence[Any]) -> None:
    """Put ``results`` in the place of the outputs of a call with several."""
    for user in list(node.users):
        assert user.target is operator.getitem
        index = user.args[1]
        assert isinstance(index, int)
        user.replace_all_uses_with(results[index])
        graph.erase_node(user)
    graph.erase_node(node)


def slice_extent(part: fx.Node, size: int, dim: int) -> tuple[int, int]:
    """Where a slice starts, and how much it has, of a dim of this size."""
    start = argument(part, "start") or 0
    return start + size if start < 0 else start, value_of(part).shape[dim]


def changes_memory(node: fx.Node) -> bool:
    """Whether a call changes its first argument in place."""
    return isinstance(node.target, OpOverload) and _writes_to_first(node.target)


@cache
def _writes_to_first(operator: OpOverload) -> bool:
    first = operator._schema.arguments[:1]
    return any(a.alias_info is not None and a.alias_info.is_write for a in first)


def gives_views(target: Any) -> bool:
    """Whether an operator gives tensors that share the memory of what it is given, and that it
    has not changed."""
    returns = target._schema.returns if isinstance(target, OpOverload) else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def forces_copy(node: fx.Node) -> bool:
    """Whether a cast was asked for new memory."""
    assert isinstance(node.target, OpOverload)
    names = [declared.name for declared in node.target._schema.arguments]
    return "copy" in names and bool(argument(node, "copy"))


def running_statistics(node: fx.Node) -> list[fx.Node]:
    """The tensors that a batch normalisation in training changes, which its schema
    does not say."""
    is_training = target_name(node) == "aten.batch_norm.default" and bool(node.args[5])
    if not is_training and target_name(node) != "tensoropt.batch_norm_groups.default":
        return []
    return [running for running in node.args[3:5] if isinstance(running, fx.Node)]


def source_line(node: fx.Node) -> str:
    """Where the user's code made the call, for error messages: its innermost line that is not
    PyTorch's."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
    starts = [number for number, line in enumerate(lines) if line.startswith('File "')]
    own = [number for number in starts if not lines[number].startswith(_NOT_THE_USERS)] or starts
    return f"; at {' '.join(lines[own[-1] : own[-1] + 2])}" if own else ""
