"""Real data that is at hand: CPython's own documentation as text, and the
handwritten digits of scikit-learn."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from examples.text import CharText, load_text

BATCH = 8
LENGTH = 8
NUM_DIGITS = 10


@cache
def text() -> CharText:
    """The text, read once."""
    return load_text()


def tokens(length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Characters and those that follow, both (BATCH, length)."""
    return text().batch(0, BATCH, length)


def digits(side: int = 8, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Images (BATCH, channels, side, side) of 8 x 8 points, enlarged, and what
    they show."""
    data = load_digits()
    images = torch.tensor(data.images[:BATCH] / 16.0, dtype=torch.float32).unsqueeze(1)
    images = nn.functional.interpolate(images, size=side, mode="nearest")
    classes = torch.tensor(data.target[:BATCH], dtype=torch.long)
    return images.repeat(1, channels, 1, 1), classes
