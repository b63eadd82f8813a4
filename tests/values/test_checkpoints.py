"""Checkpoints that values come from: what is read of them, and what cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tensoropt_torch import TensorOptError
from tensoropt_torch.values.checkpoints import open_checkpoint

TENSORS = {
    "matrix": torch.arange(24.0).view(4, 6),
    "scalar": torch.tensor(3),
    "half": torch.ones(4, dtype=torch.bfloat16),
    "empty": torch.empty(0, 2),
}


def write(path: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors or TENSORS, path)
    return path


def write_index(folder: Path, places: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(places))
    return path


def test_parts_of_safetensors_are_those_of_the_tensors(tmp_path: Path) -> None:
    saved = open_checkpoint(write(tmp_path / "a.safetensors"))
    assert saved.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert saved[name].shape == tensor.shape
        whole = saved[name][tuple(slice(0, size) for size in tensor.shape)]
        assert whole.dtype == tensor.dtype and torch.equal(whole, tensor)
    part = (slice(1, 3), slice(3, 6))
    assert torch.equal(saved["matrix"][part], TENSORS["matrix"][part])


def test_an_index_joins_its_files(tmp_path: Path) -> None:
    for name, tensor in TENSORS.items():
        write(tmp_path / f"{name}.safetensors", **{name: tensor})
    places = {name: f"{name}.safetensors" for name in TENSORS}
    index = write_index(tmp_path, {"weight_map": places})
    for checkpoint in (index, tmp_path, str(tmp_path)):
        assert open_checkpoint(checkpoint).keys() == TENSORS.keys()


def test_what_is_no_checkpoint_is_a_clear_error(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(TensorOptError) as caught:
            open_checkpoint(path)
        return str(caught.value)

    assert "neither a file nor a folder" in message(tmp_path / "nowhere")
    assert "has no model.safetensors" in message(tmp_path)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"xx")
    assert "broken.safetensors' cannot be read" in message(broken)
    assert "no index of safetensors" in message(write_index(tmp_path, []))
    index = write_index(tmp_path, {"weight_map": {"a": "lost.safetensors"}})
    assert "lost.safetensors' cannot be read" in message(index)
    torch.save([1], tmp_path / "list.pt")
    assert "holds a list" in message(tmp_path / "list.pt")


def test_safetensors_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(TensorOptError, match="pip install safetensors"):
        open_checkpoint(path)
