"""Small versions of common models, each with one training step: real code and
real data as far as they are at hand, sizes that divide by 4 where that is natural.
"""

from __future__ import annotations

import torch

from benchmarks.coverage.zoo import (
    basic,
    huggingface,
    moe_and_recommenders,
    recurrent,
    transformers,
    vision,
)
from benchmarks.coverage.zoo.example import Build, Example

FAMILIES = (basic, recurrent, vision, transformers, moe_and_recommenders, huggingface)

MODELS: dict[str, Build] = {
    name: build for family in FAMILIES for name, build in family.MODELS.items()
}


def make(name: str) -> Example:
    """The model and its data, in training mode: the same numbers on every call."""
    torch.manual_seed(0)
    example = MODELS[name]()
    example.model.train()
    return example


__all__ = ["MODELS", "Build", "Example", "make"]
