"""Tensors whose memory is no array: sparse ones, nested ones, those of oneDNN.

Ranks send and cut arrays. So a module has none of the others, and gets none; a sparse matrix may
be made in the forward pass, where operators that run whole read it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes.nodes import source_line, target_name

_WAY_OUT = (
    "give it dense, or give its indices and values, and make it in the forward pass "
    "(torch.sparse_coo_tensor(indices, values, size)), for torch.sparse.mm to read"
)


def refuse_sparse_tensors(model: nn.Module, positional: Mapping[str, Any], kwargs: Any) -> None:
    """Of a module and of its example inputs.

    Raises:
        TensorOptError: there is one; says which, and what to do.
    """
    named = [
        *((f"parameter '{name}'", tensor) for name, tensor in model.named_parameters()),
        *((f"buffer '{name}'", tensor) for name, tensor in model.named_buffers()),
    ]
    for path, leaf in pytree.tree_leaves_with_path((dict(positional), dict(kwargs or {}))):
        named.append((f"input {_where(path)}", leaf))
    for name, value in named:
        if isinstance(value, torch.Tensor) and not _is_array(value):
            raise TensorOptError(
                f"{name} of {type(model).__name__} is a {_kind(value)} tensor "
                f"({str(value.layout).removeprefix('torch.')}); ranks hold and send dense parts: "
                f"{_WAY_OUT}"
            )


def refuse_split_sparse_values(graph: fx.Graph, known: Container[str]) -> None:
    """Of a captured graph, where operators with a rule, ``known``, may be split.

    Raises:
        TensorOptError: such an operator reads a sparse tensor.
    """
    for node in graph.nodes:
        if target_name(node) not in known:
            continue
        for operand in node.all_input_nodes:
            value = operand.meta.get("val")
            if isinstance(value, torch.Tensor) and not _is_array(value):
                raise TensorOptError(
                    f"operator '{node.name}' ({node.target}) reads a {_kind(value)} tensor, of "
                    "which ranks would have parts; make it dense before (x.to_dense()), or change "
                    f"the values that it is made of{source_line(node)}"
                )


def _is_array(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested


def _kind(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    return "sparse" if "sparse" in str(tensor.layout) else "oneDNN"


def _where(path: tuple[Any, ...]) -> str:
    """``args[1]`` of positional ones, ``mask`` of those by name."""
    _, first, *rest = path
    name = str(getattr(first, "key", first))
    return name + pytree.keystr(tuple(rest))
