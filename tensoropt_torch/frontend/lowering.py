"""Lowering of a normalised ``fx.Graph`` to the C++ graph, as plain records."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes.fused import BLOCKS, Blocks
from tensoropt_torch.frontend.passes.nodes import NUMBER, source_line
from tensoropt_torch.units import dtype_name

Meta = tuple[list[int], str]

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
MEMORY_ORDER = "memory_order"
_BATCHING = ("_vmap_increment_nesting", "_add_batch_dim", "_remove_batch_dim")


@dataclass
class Lowering:
    """The C++ graph and how it corresponds to the fx graph.

    ``values[node]`` are the ids of the values a node produces (one per output,
    in order), ``nodes[node]`` its id in the C++ graph. ``rules`` are the operators
    that had a rule when the graph was lowered.
    """

    graph: _C.Graph
    rules: _C.Rules
    values: dict[fx.Node, list[_C.ValueId]] = field(default_factory=dict)
    nodes: dict[fx.Node, _C.NodeId] = field(default_factory=dict)


def lower(graph: fx.Graph, sources: Mapping[fx.Node, tuple[str, str]]) -> Lowering:
    """Build the C++ graph of an fx graph whose placeholders are ``sources``.

    ``sources`` gives kind ('parameter', 'constant', 'input', 'literal', 'total') and
    name of each placeholder.
    """
    lowering = Lowering(_C.Graph(), _C.current_rules())
    for node in graph.nodes:
        if node.op == "placeholder":
            _lower_source(lowering, node, *sources[node])
        elif node.op == "output":
            _lower_output(lowering, node)
        elif node.target is operator.getitem:
            _lower_getitem(lowering, node)
        elif node.op == "call_function" and isinstance(node.target, OpOverload):
            _lower_call(lowering, node, node.target)
        else:
            _refuse(node)
    return lowering


def _refuse(node: fx.Node) -> NoReturn:
    """Raises TensorOptError: it is no call of an operator."""
    if getattr(node.target, "__name__", "") in _BATCHING:
        raise TensorOptError(
            f"the forward pass calls torch.vmap ({node.name}), of which a captured graph has no "
            f"call; write the dimension out, as by broadcasting{source_line(node)}"
        )
    region = node if node.op == "call_function" else next(iter(node.users), node)
    raise TensorOptError(
        f"the captured graph has a region '{region.target}' ({region.name}), which is not an "
        "operator: control flow such as torch.cond, and other higher-order operators, are not "
        "supported; compute both branches and choose with torch.where, or unroll the loop"
        f"{source_line(region)}"
    )


def _size_error(node: fx.Node) -> TensorOptError:
    return TensorOptError(
        f"operator '{operator_name(node)}' ({node.target}) returns something that is not a tensor "
        "of fixed size; numbers and sizes that depend on data are not supported: keep a tensor "
        "(no .item(), .tolist()), take torch.where(mask, x, 0) in place of x[mask], pad to a "
        "fixed size, or compute this part outside of the module, from what it returns"
        f"{source_line(node)}"
    )


@contextmanager
def sizes_are_fixed(graph: fx.Graph) -> Iterator[None]:
    """Around what reads sizes in a graph.

    Raises:
        TensorOptError: a size that it reads depends on data; names the operator that it is from.
    """
    try:
        yield
    except Exception as error:
        found = (node for node in graph.nodes if node.op == "call_function" and _by_data(node))
        source = next(found, None)
        if isinstance(error, TensorOptError) or source is None:
            raise
        raise _size_error(source) from None


def _by_data(node: fx.Node) -> bool:
    """Whether a call returns a number, or a size, that depends on data."""
    return any(
        isinstance(value, _NUMBERS)
        or (isinstance(value, torch.Tensor) and not _has_fixed_shape(value))
        for value in pytree.tree_leaves(node.meta.get("val"))
    )


def operator_name(node: fx.Node) -> str:
    """A readable unique name: module path and node name."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    path = str(paths[-1]) if paths else ""
    path = path.removeprefix("L['self'].").removeprefix("model").removeprefix(".")
    return f"{path}.{node.name}" if path else node.name


def named_arguments(node: fx.Node) -> list[tuple[str, Any]]:
    """All arguments of a call by schema name, defaults filled in."""
    assert isinstance(node.target, OpOverload)
    return list(arguments_by_name(node.target, node.args, node.kwargs).items())


def arguments_by_name(
    target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call in the order of the schema; None where there is no default."""
    result = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(args):
            result[argument.name] = args[position]
        else:
            default = argument.default_value if argument.has_default_value() else None
            result[argument.name] = kwargs.get(argument.name, default)
    return result


def tensor_operands(node: fx.Node) -> list[fx.Node]:
    """The tensor arguments of a call in schema order, lists flattened."""
    operands: list[fx.Node] = []
    for _, value in named_arguments(node):
        fx.map_arg(value, operands.append)
    return operands


def _meta_of(value: torch.Tensor) -> Meta:
    return [int(size) for size in value.shape], dtype_name(value.dtype)


def _lower_source(lowering: Lowering, node: fx.Node, kind: str, name: str) -> None:
    if kind == "literal":
        return
    value = node.meta["val"]
    source_kind = {
        "parameter": _C.NodeKind.PARAMETER,
        "constant": _C.NodeKind.CONSTANT,
        "input": _C.NodeKind.INPUT,
        "total": _C.NodeKind.INPUT,
    }[kind]
    trainable = kind != "constant" and bool(value.requires_grad)
    lowering.nodes[node] = _C.NodeId(lowering.graph.num_nodes())
    blocks: Blocks | None = node.meta.get(BLOCKS)
    # Parts of blocks are those of DTensor only if they are equal.
    even_dims = [] if blocks is None else [blocks.dim, blocks.dim + 1]
    lowering.values[node] = [
        lowering.graph.add_source(
            source_kind, name, _meta_of(value), trainable=trainable, even_dims=even_dims
        )
    ]


def _lower_output(lowering: Lowering, node: fx.Node) -> None:
    lowering.nodes[node] = _C.NodeId(lowering.graph.num_nodes())
    lowering.graph.set_outputs(
        [lowering.values[value][0] for value in node.all_input_nodes if value in lowering.values]
    )


def _lower_getitem(lowering: Lowering, node: fx.Node) -> None:
    source, index = node.args
    assert isinstance(source, fx.Node) and isinstance(index, int)
    lowering.values[node] = [lowering.values[source][index]]


def _lower_call(lowering: Lowering, node: fx.Node, target: OpOverload) -> None:
    value = node.meta["val"]
    outputs = list(value) if isinstance(value, (tuple, list)) else [value]
    if not all(_has_fixed_shape(output) for output in outputs):
        raise _size_error(node)
    arguments = [
        (name, _argument(lowering, item)) for name, item in named_arguments(node) if name != NUMBER
    ]
    orders = memory_orders(node)
    if any(orders):
        # An argument that no rule reads: such a call takes another time.
        arguments.append((MEMORY_ORDER, " ".join(orders)))
    lowering.nodes[node] = _C.NodeId(lowering.graph.num_nodes())
    lowering.values[node] = lowering.graph.add_op(
        operator_name(node),
        str(target),
        arguments,
        [_meta_of(output) for output in outputs],
        differentiable="detach" not in str(target),
    )


def memory_orders(node: fx.Node) -> list[str]:
    """For each tensor operand of a call its dims by descending stride, such as
    ``0,2,1``; empty where that is their own order. Dims of size 1 and broadcast ones
    stay where they are."""
    return [_memory_order(operand.meta["val"]) for operand in tensor_operands(node)]


def _memory_order(tensor: torch.Tensor) -> str:
    strides = tensor.stride()
    moving = [dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1 and strides[dim] > 0]
    order = list(range(tensor.dim()))
    for position, dim in zip(moving, sorted(moving, key=lambda dim: -strides[dim]), strict=True):
        order[position] = dim
    return "" if order == sorted(order) else ",".join(map(str, order))


def _has_fixed_shape(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.shape)


def _argument(lowering: Lowering, value: Any) -> Any:
    """A tensor becomes a Ref, lists stay lists, what costs do not see is dropped. None
    stays only in a list of tensors."""
    if isinstance(value, fx.Node):
        return _C.Ref(lowering.values[value][0])
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Sequence):
        if any(isinstance(item, fx.Node) for item in value):
            tensors = (item if isinstance(item, fx.Node) else None for item in value)
            return [_argument(lowering, item) for item in tensors]
        if all(isinstance(item, (int, float)) for item in value):
            return list(value)
    return None
