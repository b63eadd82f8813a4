"""The containers in which modules take inputs and return outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError

CACHE = "past_key_values"  # as Hugging Face's models call it


def register_dataclasses(tree: Any) -> None:
    """Let export look into the dataclasses of a tree."""
    for leaf in pytree.tree_leaves(tree):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            torch.export.register_dataclass(type(leaf))
            register_dataclasses(leaf)


def training_output(output: Any, module: str) -> Any:
    """What a training step keeps of an output: if there is a ``loss`` in it, the same
    container with the loss alone, so that no device has to hold, say, all logits.

    Raises:
        TensorOptError: the container has a loss, but it is no scalar.
    """
    if isinstance(output, Mapping):
        if "loss" not in output:
            return output
        check_loss(output["loss"], f"the output of {module}")
        return type(output)(loss=output["loss"])  # type: ignore[call-arg]
    register_dataclasses(output)
    if not dataclasses.is_dataclass(output) or not hasattr(output, "loss"):
        return output
    check_loss(output.loss, f"the output of {module}")
    others = [f.name for f in dataclasses.fields(output) if f.init and f.name != "loss"]
    return dataclasses.replace(output, **dict.fromkeys(others))  # type: ignore[type-var]


def whole_output(output: Any) -> Any:
    """What a call keeps of an output of which everything is wanted: all but the keys and
    values that language models keep for generation, since those are for one more token."""
    if isinstance(output, Mapping) and output.get(CACHE) is not None:
        return type(output)(**{k: v for k, v in output.items() if k != CACHE})
    register_dataclasses(output)
    return output


def check_loss(loss: Any, place: str) -> None:
    """Refuse a loss that cannot be trained on."""
    if isinstance(loss, torch.Tensor) and loss.dim() == 0 and loss.is_floating_point():
        return
    found = f"{loss.dtype} {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
    raise TensorOptError(
        f"the loss in {place} is {found}; it has to be a floating-point scalar: pass the labels "
        "so that the module computes its loss, or give loss_fn= and targets="
    )
