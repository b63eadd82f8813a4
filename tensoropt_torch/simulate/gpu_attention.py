"""Which attention GPUs compute by a fused kernel, which keeps no scores for backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_HALF = (torch.float16, torch.bfloat16)
_MOST_HEAD_DIM = 256  # of flash attention
_BYTES = 16  # to which rows of heads are aligned in the memory-efficient kernel

Arguments = Mapping[str, Any]


def has_fused_kernel(given: Arguments) -> bool:
    """Whether PyTorch takes flash attention or the memory-efficient kernel on CUDA, of compute
    capability 8 or more, for these arguments by name. On GPUs, unlike on CPUs, both drop
    values, and the latter takes masks that need gradients."""
    return _is_dense(given) and (_is_flash(given) or _is_efficient(given))


def _is_dense(given: Arguments) -> bool:
    """What both ask for: (batch, heads, rows, head dim), none empty, whole in its last dim."""
    tensors = [given["query"], given["key"], given["value"]]
    if any(tensor.dim() != 4 or 0 in tensor.shape[2:] for tensor in tensors):
        return False
    if len({tensor.shape[0] for tensor in tensors}) > 1:
        return False
    mask = given.get("attn_mask")
    return all(x.stride(-1) == 1 for x in (*tensors, *([] if mask is None else [mask])))


def _is_flash(given: Arguments) -> bool:
    query, key, value = given["query"], given["key"], given["value"]
    if query.dtype not in _HALF or given.get("attn_mask") is not None:
        return False
    if given.get("is_causal") and query.shape[2] != key.shape[2]:
        return False
    if not query.shape[3] == key.shape[3] == value.shape[3] <= _MOST_HEAD_DIM:
        return False
    if not given.get("enable_gqa"):
        return _have_equal_heads(given)
    return bool(key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0)


def _is_efficient(given: Arguments) -> bool:
    query, key, value = given["query"], given["key"], given["value"]
    if query.dtype not in (*_HALF, torch.float32):
        return False
    if query.shape[3] != key.shape[3] or not _have_equal_heads(given):
        return False
    aligned = _BYTES // query.itemsize
    return bool(query.shape[3] % aligned == 0 and value.shape[3] % aligned == 0)


def _have_equal_heads(given: Arguments) -> bool:
    return bool(given["query"].shape[1] == given["key"].shape[1] == given["value"].shape[1])
