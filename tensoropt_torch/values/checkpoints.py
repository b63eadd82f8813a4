"""Checkpoints that a model gets its values from: tensors by name, read part by part."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.values.parts import SavedTensor
from tensoropt_torch.values.safetensors_files import INDEX_SUFFIX, SUFFIX, file_in, open_safetensors

Checkpoint = Mapping[str, torch.Tensor] | str | Path


Saved = Mapping[str, SavedTensor]


def is_distributed(checkpoint: Checkpoint) -> bool:
    """Whether it is a folder of ``torch.distributed.checkpoint``."""
    return isinstance(checkpoint, str | Path) and (Path(checkpoint) / ".metadata").is_file()


def open_checkpoint(checkpoint: Checkpoint) -> Saved:
    """The tensors of a checkpoint that is not distributed, by name. Nothing is read yet.

    Raises:
        TensorOptError: there is no such checkpoint, or it holds something else.
    """
    if isinstance(checkpoint, Mapping):
        return checkpoint
    path = Path(checkpoint)
    path = (file_in(path) or path) if path.is_dir() else path
    if not path.is_file():
        found = "has no model.safetensors" if path.is_dir() else "is neither a file nor a folder"
        raise TensorOptError(
            f"checkpoint '{path}' {found}; give what save_pretrained has written, a file of "
            "safetensors or torch.save, a folder of torch.distributed.checkpoint, or a mapping "
            "from names to tensors"
        )
    if path.name.endswith((SUFFIX, INDEX_SUFFIX)):
        return open_safetensors(path)
    loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(loaded, Mapping):
        raise TensorOptError(
            f"checkpoint '{path}' holds a {type(loaded).__name__}, not a state_dict; save "
            "model.state_dict()"
        )
    return loaded


def given_name(names: Sequence[str], saved: Collection[str]) -> str | None:
    """Which of the names of a tensor the checkpoint knows."""
    return next((name for name in names if name in saved), None)


def check_given(name: str, saved: Collection[str]) -> None:
    """Raises TensorOptError unless the checkpoint has the tensor."""
    if name not in saved:
        raise TensorOptError(
            f"the checkpoint has no '{name}'; it has {', '.join(sorted(saved)[:5])}"
            f"{', ...' if len(saved) > 5 else ''}; give the state_dict of the model itself, or "
            "initialise=, a function that sets what is missing"
        )


def check_shape(name: str, saved: torch.Size, own: torch.Size) -> None:
    """Raises TensorOptError unless a tensor has the same shape in the checkpoint."""
    if saved != own:
        raise TensorOptError(
            f"'{name}' has shape {tuple(saved)} in the checkpoint, {tuple(own)} in the model; "
            "give the checkpoint of this model"
        )
