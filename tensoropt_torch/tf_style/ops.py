"""Functions on symbolic tensors, by the names of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.tf_style import functions
from tensoropt_torch.tf_style.graph import current_graph
from tensoropt_torch.tf_style.initializers import Initializer
from tensoropt_torch.tf_style.tensor import Placeholder, Tensor, Variable

Axis = int | Sequence[int] | None


def placeholder(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, name: str | None = None
) -> Placeholder:
    """An input, with the sizes of the global batch."""
    return current_graph().placeholder(shape, dtype, name)


def get_variable(
    name: str,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    initializer: Initializer | torch.Tensor | None = None,
    trainable: bool = True,
) -> Variable:
    """A parameter. ``initializer`` fills a tensor in place, or is the value; by default
    ``glorot_uniform_initializer``. No memory is taken before ``build_execution_graph``.

    Raises:
        TensorOptError: there is a variable of that name already.
    """
    return current_graph().variable(name, shape, dtype, initializer, trainable)


@contextmanager
def variable_scope(name: str, reuse: bool = False) -> Iterator[None]:
    """Variables made inside are named ``name/...``. With ``reuse`` those that are there
    are taken again."""
    with current_graph().scope(name, reuse):
        yield


def constant(
    value: Any, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None
) -> Tensor:
    """A tensor that is not trained: a number, nested lists or a tensor."""
    tensor = torch.as_tensor(value, dtype=dtype)
    return current_graph().constant(tensor if shape is None else tensor.expand(tuple(shape)))


def matmul(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """The product of the last two dims."""
    graph = current_graph()
    if transpose_a:
        a = graph.call(torch.transpose, a, -2, -1)
    if transpose_b and isinstance(b, Variable) and b.shape[1:] == a.shape[-1:]:
        result: Tensor = graph.call(F.linear, a, b)  # what a tied embedding is used for
        return result
    if transpose_b:
        b = graph.call(torch.transpose, b, -2, -1)
    return graph.matmul(a, b)


def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``."""
    return current_graph().elementwise(torch.relu, x)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return current_graph().elementwise(torch.tanh, x)


def sigmoid(x: Tensor) -> Tensor:
    """Logistic function."""
    return current_graph().elementwise(torch.sigmoid, x)


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """Gaussian error linear unit, exact or by tanh."""
    return current_graph().elementwise(F.gelu, x, approximate="tanh" if approximate else "none")


def softmax(logits: Tensor, axis: int = -1) -> Tensor:
    """Softmax along an axis."""
    result: Tensor = current_graph().call(torch.softmax, logits, axis)
    return result


def dropout(x: Tensor, rate: float) -> Tensor:
    """Sets elements to 0 with probability ``rate`` and scales the others."""
    return current_graph().elementwise(F.dropout, x, rate)


def softmax_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """The mean loss over all positions. ``logits`` are ``[..., classes]``; ``labels``
    class indices ``[...]``, or probabilities ``[..., classes]``."""
    sparse, dense = logits.shape[:-1], logits.shape
    expected = dense if labels.dtype.is_floating_point else sparse
    if labels.shape != expected:
        raise TensorOptError(
            f"softmax_cross_entropy: logits '{logits.name}' {list(logits.shape)} need labels "
            f"{list(sparse)} of integers (class indices) or {list(dense)} of floating point "
            f"(probabilities); '{labels.name}' is {list(labels.shape)} of {labels.dtype}"
        )
    result: Tensor = current_graph().call(functions.cross_entropy, labels, logits)
    return result


def embedding_lookup(params: Tensor, ids: Tensor) -> Tensor:
    """Rows of ``params`` ``[rows, width]``: ``[..., width]`` for ids ``[...]``."""
    result: Tensor = current_graph().call(F.embedding, ids, params)
    return result


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Another shape of the whole tensor; one size may be -1."""
    result: Tensor = current_graph().call(torch.reshape, x, tuple(shape))
    return result


def transpose(x: Tensor, perm: Sequence[int] | None = None) -> Tensor:
    """Dims in another order; by default reversed."""
    order = tuple(perm) if perm is not None else tuple(reversed(range(len(x.shape))))
    result: Tensor = current_graph().call(torch.permute, x, order)
    return result


def concat(values: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors along an axis."""
    result: Tensor = current_graph().call(torch.cat, list(values), axis)
    return result


def split(
    value: Tensor, num_or_size_splits: int | Sequence[int], axis: int = 0
) -> tuple[Tensor, ...]:
    """Cut along an axis into so many equal parts, or parts of the sizes given."""
    size = value.shape[axis]
    if isinstance(num_or_size_splits, int):
        if size % num_or_size_splits != 0:
            raise TensorOptError(
                f"split: axis {axis} of '{value.name}' {list(value.shape)} cannot be cut into "
                f"{num_or_size_splits} equal parts; give the sizes of the parts"
            )
        sizes: Sequence[int] = [size // num_or_size_splits] * num_or_size_splits
    else:
        sizes = num_or_size_splits
    parts: tuple[Tensor, ...] = current_graph().call(torch.split, value, list(sizes), axis)
    return parts


def reduce_mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean over some axes; by default over all."""
    return _reduce(torch.mean, x, axis, keepdims)


def reduce_sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum over some axes; by default over all."""
    return _reduce(torch.sum, x, axis, keepdims)


def _reduce(function: Any, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    graph = current_graph()
    if axis is None and not keepdims:
        whole: Tensor = graph.call(function, x)
        return whole
    axes = range(len(x.shape)) if axis is None else [axis] if isinstance(axis, int) else axis
    result: Tensor = graph.call(function, x, list(axes), keepdims)
    return result
