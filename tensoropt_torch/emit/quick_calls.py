"""The calls of a graph by functions of PyTorch that take the host half as long as ATen's names.

::

    forward = quick_forward(rank_graph)
    outputs = forward(*inputs, seed)       # as rank_graph.forward

``torch.ops.aten.linear.default`` matches its arguments with a schema at each call, as any operator
does, while ``torch.nn.functional.linear`` was written for its own. Both call the same operator.
What is called so is a copy: graphs that are read, cut or compiled have ATen's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.emit.copies import GraphCopy

_ATEN = torch.ops.aten
_NN = torch._C._nn
_TENSOR = torch.Tensor

_BY_NAME = "memory_format"  # which functions and methods take by name alone, and operators do not
# Functions that take what the operator takes, in its order, and take for what is missing what it
# takes. Those of losses do not: they have another reduction by default.
QUICK: Mapping[OpOverload, Callable[..., Any]] = {
    _ATEN._log_softmax.default: torch._log_softmax,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default: (
        torch._scaled_dot_product_flash_attention_for_cpu
    ),
    _ATEN._softmax.default: torch._softmax,
    _ATEN.abs.default: torch.abs,
    _ATEN.add.Tensor: torch.add,
    _ATEN.add_.Tensor: _TENSOR.add_,
    _ATEN.addmm.default: torch.addmm,
    _ATEN.avg_pool2d.default: _NN.avg_pool2d,
    _ATEN.adaptive_avg_pool2d.default: _NN.adaptive_avg_pool2d,
    _ATEN.baddbmm.default: torch.baddbmm,
    _ATEN.batch_norm.default: torch.batch_norm,
    _ATEN.bmm.default: torch.bmm,
    _ATEN.cat.default: torch.cat,
    _ATEN.chunk.default: torch.chunk,
    _ATEN.clamp.default: torch.clamp,
    _ATEN.clone.default: torch.clone,
    _ATEN.conv1d.default: torch.conv1d,
    _ATEN.conv2d.default: torch.conv2d,
    _ATEN.convolution.default: torch.convolution,
    _ATEN.cos.default: torch.cos,
    _ATEN.cumsum.default: torch.cumsum,
    _ATEN.detach.default: torch.detach,
    _ATEN.div.Tensor: torch.div,
    _ATEN.embedding.default: torch.embedding,
    _ATEN.exp.default: torch.exp,
    _ATEN.expand.default: _TENSOR.expand,
    _ATEN.flatten.using_ints: torch.flatten,
    _ATEN.gather.default: torch.gather,
    _ATEN.gelu.default: _NN.gelu,
    _ATEN.group_norm.default: torch.group_norm,
    _ATEN.layer_norm.default: torch.layer_norm,
    _ATEN.linear.default: _NN.linear,
    _ATEN.log_softmax.int: torch.log_softmax,
    _ATEN.masked_fill.Scalar: torch.masked_fill,
    _ATEN.matmul.default: torch.matmul,
    _ATEN.max_pool2d.default: torch.max_pool2d,
    _ATEN.max_pool2d_with_indices.default: _NN.max_pool2d_with_indices,
    _ATEN.mean.default: torch.mean,
    _ATEN.mean.dim: torch.mean,
    _ATEN.mm.default: torch.mm,
    _ATEN.mul.Tensor: torch.mul,
    _ATEN.native_batch_norm.default: torch.native_batch_norm,
    _ATEN.narrow.default: torch.narrow,
    _ATEN.native_group_norm.default: torch.native_group_norm,
    _ATEN.native_layer_norm.default: torch.native_layer_norm,
    _ATEN.neg.default: torch.neg,
    _ATEN.permute.default: torch.permute,
    _ATEN.pow.Tensor_Scalar: torch.pow,
    _ATEN.relu.default: torch.relu,
    _ATEN.relu_.default: torch.relu_,
    _ATEN.reshape.default: torch.reshape,
    _ATEN.rms_norm.default: torch.rms_norm,
    _ATEN.rsqrt.default: torch.rsqrt,
    _ATEN.scaled_dot_product_attention.default: _NN.scaled_dot_product_attention,
    _ATEN.select.int: torch.select,
    _ATEN.sigmoid.default: torch.sigmoid,
    _ATEN.silu.default: _NN.silu,
    _ATEN.sin.default: torch.sin,
    _ATEN.softmax.int: torch.softmax,
    _ATEN.split_with_sizes.default: torch.split_with_sizes,
    _ATEN.sqrt.default: torch.sqrt,
    _ATEN.squeeze.dim: torch.squeeze,
    _ATEN.stack.default: torch.stack,
    _ATEN.sub.Tensor: torch.sub,
    _ATEN.sum.default: torch.sum,
    _ATEN.sum.dim_IntList: torch.sum,
    _ATEN.t.default: torch.t,
    _ATEN.tanh.default: torch.tanh,
    _ATEN.to.dtype: _TENSOR.to,
    _ATEN.transpose.int: torch.transpose,
    _ATEN.unbind.int: torch.unbind,
    _ATEN.unsqueeze.default: torch.unsqueeze,
    _ATEN.upsample_nearest2d.vec: _NN.upsample_nearest2d,
    _ATEN.view.default: _TENSOR.view,
    _ATEN.where.self: torch.where,
}

# Of these the method takes still less, with numbers by themselves in place of a list of them.
METHODS: Mapping[OpOverload, str] = {
    _ATEN.addmm.default: "addmm",
    _ATEN.expand.default: "expand",
    _ATEN.mm.default: "mm",
    _ATEN.permute.default: "permute",
    _ATEN.reshape.default: "reshape",
    _ATEN.sum.dim_IntList: "sum",
    _ATEN.t.default: "t",
    _ATEN.transpose.int: "transpose",
    _ATEN.view.default: "view",
}


def quick_forward(graph: fx.GraphModule) -> Callable[..., Any]:
    """The forward of a copy."""
    copy = GraphCopy()
    for node in graph.graph.nodes:
        quicken(copy.add(node))
    return fx.GraphModule(graph, copy.graph, "QuickRankGraph").forward


def quicken(node: fx.Node) -> None:
    """Another function for the call of an operator, if there is one."""
    op = node.target
    if not isinstance(op, OpOverload):
        return
    if op is _ATEN._to_copy.default and node.kwargs.keys() == {"dtype"}:
        node.args = (*node.args, node.kwargs["dtype"], False, True)  # which is a copy
        node.target, node.kwargs = _TENSOR.to, {}
        return
    function = QUICK.get(op)
    if function is not None and _has_tensors(node, op):
        node.target = function
        node.args, node.kwargs = _without_defaults(node, op)
    if function is not None and op in METHODS and not node.kwargs:
        _call_method(node, METHODS[op])


def _call_method(node: fx.Node, name: str) -> None:
    source, *args = node.args
    if args and isinstance(args[0], list | tuple):
        numbers = [*args[0]]
        if name == "sum":
            args = [numbers[0] if len(numbers) == 1 else numbers, *args[1:]]
        elif len(args) == 1 and numbers:
            args = numbers
    node.op, node.target, node.args = "call_method", name, (source, *args)


def _has_tensors(node: fx.Node, op: OpOverload) -> bool:
    """Whether what the operator takes as tensors are some: for numbers among them the function
    may call another one."""
    given = zip(op._schema.arguments, node.args, strict=False)
    return all(
        isinstance(value, fx.Node)
        for argument, value in given
        if isinstance(argument.type, torch.TensorType)
    )


def _without_defaults(node: fx.Node, op: OpOverload) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments but those that the function, too, takes for what it is not given."""
    defaults = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
    names = [argument.name for argument in op._schema.arguments]
    args = list(node.args)
    while args and _is_default(args[-1], names[len(args) - 1], defaults):
        args.pop()
    kwargs = {n: v for n, v in node.kwargs.items() if not _is_default(v, n, defaults)}
    if args and names[len(args) - 1] == _BY_NAME:
        kwargs[_BY_NAME] = args.pop()
    return tuple(args), kwargs


def _is_default(value: Any, name: str, defaults: Mapping[str, Any]) -> bool:
    if name not in defaults or isinstance(value, fx.Node):
        return False
    default = defaults[name]
    return type(value) is type(default) and bool(value == default)
