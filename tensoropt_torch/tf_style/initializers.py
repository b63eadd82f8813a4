"""Initial values of variables, by the names of TensorFlow 1.

An initializer is any function that fills a tensor in place, those of
``torch.nn.init`` included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

# Fills a tensor in place, e.g. ``torch.nn.init.xavier_uniform_``.
Initializer = Callable[[torch.Tensor], Any]


def zeros_initializer() -> Initializer:
    """All zeros."""
    return nn.init.zeros_


def ones_initializer() -> Initializer:
    """All ones."""
    return nn.init.ones_


def constant_initializer(value: float) -> Initializer:
    """One value everywhere."""
    return lambda tensor: nn.init.constant_(tensor, value)


def random_normal_initializer(mean: float = 0.0, stddev: float = 0.05) -> Initializer:
    """Normally distributed numbers."""
    return lambda tensor: nn.init.normal_(tensor, mean, stddev)


def truncated_normal_initializer(mean: float = 0.0, stddev: float = 0.05) -> Initializer:
    """Normally distributed numbers, at most two deviations from the mean."""
    low, high = mean - 2 * stddev, mean + 2 * stddev
    return lambda tensor: nn.init.trunc_normal_(tensor, mean, stddev, low, high)


def random_uniform_initializer(minval: float = -0.05, maxval: float = 0.05) -> Initializer:
    """Uniformly distributed numbers."""
    return lambda tensor: nn.init.uniform_(tensor, minval, maxval)


def glorot_uniform_initializer() -> Initializer:
    """Uniform up to ``sqrt(6 / (fan_in + fan_out))``; the default."""

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        limit = math.sqrt(6 / sum(_fans(tensor.shape)))
        return nn.init.uniform_(tensor, -limit, limit)

    return fill


def glorot_normal_initializer() -> Initializer:
    """Truncated normal of variance ``2 / (fan_in + fan_out)``."""

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        stddev = math.sqrt(2 / sum(_fans(tensor.shape)))
        return nn.init.trunc_normal_(tensor, 0.0, stddev, -2 * stddev, 2 * stddev)

    return fill


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    """Inputs and outputs of a variable ``[..., in, out]``, as kernels of TensorFlow are."""
    if len(shape) < 2:
        size = max(math.prod(shape), 1)
        return size, size
    receptive = math.prod(shape[:-2])
    return receptive * shape[-2], receptive * shape[-1]
