"""Tensors of safetensors files, of which the parts that are asked for are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.values.parts import Part

SUFFIX = ".safetensors"
INDEX_SUFFIX = f"{SUFFIX}.index.json"
NAMES = (f"model{INDEX_SUFFIX}", f"model{SUFFIX}")  # what save_pretrained writes


class SlicedTensor:
    """A tensor in a file that is mapped: ``tensor[part]`` reads the part."""

    def __init__(self, slices: Any) -> None:
        self._slices = slices

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._slices.get_shape())

    def __getitem__(self, part: Part) -> torch.Tensor:
        tensor: torch.Tensor = self._slices[part]
        return tensor


def file_in(folder: Path) -> Path | None:
    """The weights that ``save_pretrained`` has written to a folder."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def open_safetensors(path: Path) -> dict[str, SlicedTensor]:
    """The tensors of a file, or of all files that an index names, by name.

    Raises:
        TensorOptError: safetensors is not installed, or a file cannot be read.
    """
    if not path.name.endswith(INDEX_SUFFIX):
        return _tensors_in(path)
    try:
        places: dict[str, str] = json.loads(path.read_text())["weight_map"]
        files = sorted(set(places.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TensorOptError(
            f"'{path}' is no index of safetensors files ({error!r}); give the folder that "
            "save_pretrained has written"
        ) from error
    tensors: dict[str, SlicedTensor] = {}
    for name in files:
        tensors |= _tensors_in(path.parent / name)
    return tensors


def _tensors_in(path: Path) -> dict[str, SlicedTensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise TensorOptError(
            f"reading '{path}' needs safetensors, which is not installed; pip install safetensors"
        ) from error
    try:
        file: Any = safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise TensorOptError(
            f"checkpoint '{path}' cannot be read ({error}); save or copy it again"
        ) from error
    return {name: SlicedTensor(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
