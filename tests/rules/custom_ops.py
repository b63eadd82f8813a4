"""Operators of a user's own, with and without what their rules say."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LIBRARY = "tensoropt_test"


@torch.library.custom_op(f"{LIBRARY}::scaled_add", mutates_args=())
def scaled_add(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    """``(x + y) * scale``."""
    return (x + y) * scale


@scaled_add.register_fake
def _(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(x)


def _save_scaled_add(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _scaled_add_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, y, scale = ctx.saved_tensors
    scaled = gradient * scale
    rows = ((x + y) * gradient).reshape(-1, len(scale))
    return scaled, scaled, rows.sum(0)


scaled_add.register_autograd(_scaled_add_backward, setup_context=_save_scaled_add)


@torch.library.custom_op(f"{LIBRARY}::head_mean", mutates_args=())
def head_mean(x: Tensor, weight: Tensor, num_heads: int) -> Tensor:
    """Weighs heads of ``x`` ``[b, h * w]`` and takes the mean over the batch."""
    heads = x.reshape(len(x), num_heads, -1) * weight[:, None]
    return heads.mean(0).reshape(-1)


@head_mean.register_fake
def _(x: Tensor, weight: Tensor, num_heads: int) -> Tensor:
    return x.new_empty(x.shape[1])


def _save_head_mean(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _head_mean_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight = ctx.saved_tensors
    heads = gradient.reshape(len(weight), -1) / len(x)
    by_x = (heads * weight[:, None]).reshape(-1).expand_as(x)
    by_weight = (x.reshape(len(x), len(weight), -1) * heads).sum((0, 2))
    return by_x.clone(), by_weight, None


head_mean.register_autograd(_head_mean_backward, setup_context=_save_head_mean)


@torch.library.custom_op(f"{LIBRARY}::tile_rows", mutates_args=())
def tile_rows(x: Tensor, rows: int) -> Tensor:
    """``[n]`` to ``[rows, n]``; has no gradient."""
    return x.expand(rows, -1).clone()


@torch.library.custom_op(f"{LIBRARY}::noise", mutates_args=())
def noise(x: Tensor) -> Tensor:
    """Random numbers."""
    return torch.rand_like(x)


@torch.library.custom_op(f"{LIBRARY}::overwrite", mutates_args=("x",))
def overwrite(x: Tensor) -> None:
    """Changes its argument."""
    x.zero_()


# The rules, as a user writes them.
SCALED_ADD: dict[str, Any] = {
    "rule": "... n, ... n, n -> ... n",
    "linear_in": [["x", "y"], ["scale"]],
    "saves": ["x", "y", "scale"],
    "flops": 2.0,
}
HEAD_MEAN: dict[str, Any] = {
    "rule": "b h, h -> h",
    "linear_in": [["x"], ["weight"]],
    "mean": ["b"],
    "sizes": {"h": "num_heads"},
    "saves": [0, 1],
}


def real(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random, dtype=torch.float64)


def scaled_add_example() -> tuple[Tensor, ...]:
    return real(12, 24), real(12, 24, seed=1), real(24, seed=2)


@torch.library.custom_op(f"{LIBRARY}::affine", mutates_args=())
def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``."""
    product = x @ weight.t()
    return product if bias is None else product + bias


def _save_affine(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.biased = inputs[2] is not None


def _affine_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    x, weight = ctx.saved_tensors
    return gradient @ weight, gradient.t() @ x, gradient.sum(0) if ctx.biased else None


affine.register_autograd(_affine_backward, setup_context=_save_affine)


@torch.library.custom_op(f"{LIBRARY}::extremes", mutates_args=())
def extremes(tensors: list[Tensor], offset: Tensor) -> tuple[Tensor, Tensor]:
    """The largest and the smallest of all tensors; without a gradient."""
    stacked = torch.stack(tensors) + offset
    return stacked.amax(0), stacked.amin(0)
