"""Clusters that come with TensorOpt: by a file of their own, or for any number of machines by
the pattern of their names."""

from __future__ import annotations

import dataclasses
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from tensoropt_torch.config.cluster import Cluster, Level, parse_cluster
from tensoropt_torch.config.preset_names import (
    PATTERN_WORDS,
    PresetName,
    gpu_hint,
    preset_name,
)
from tensoropt_torch.errors import TensorOptError, close_match


def list_presets() -> list[str]:
    """Names of the clusters that come with TensorOpt, sorted: those with a file of their own."""
    return sorted(_preset_files())


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Loads the preset of that name, or the TOML file at that path.

    Raises:
        TensorOptError: there is no such preset or file, or its content is wrong.

    """
    presets = _preset_files()
    if not isinstance(name_or_path, (str, Path)):
        raise TensorOptError(
            f"cluster = {name_or_path!r} is not allowed: it must be a preset "
            f"({', '.join(sorted(presets))}, or {PATTERN_WORDS}), the path of a TOML file, or a "
            "Cluster"
        )
    if isinstance(name_or_path, str) and name_or_path in presets:
        return _load(presets[name_or_path], f"preset '{name_or_path}'")
    path = Path(name_or_path)
    if path.is_file():
        return _load(path, f"cluster file '{path}'")
    name = preset_name(str(name_or_path))
    if name is not None:
        return _of_pattern(name, str(name_or_path))
    hint = gpu_hint(str(name_or_path)) or close_match(str(name_or_path), presets)
    raise TensorOptError(
        f"cluster '{name_or_path}' is neither a preset nor a file; {hint}"
        f"presets: {', '.join(sorted(presets))}, and {PATTERN_WORDS}; or give the path of a TOML "
        "file"
    )


def _of_pattern(name: PresetName, given: str) -> Cluster:
    """The device and the links in a machine of the preset of the GPU, as often as asked."""
    base = _load(_preset_files()[name.family.preset], f"preset '{name.family.preset}'")
    inside = dataclasses.replace(base.levels[-1], count=name.devices)
    title, network = name.family.title, name.family.network
    joined = f"joined by {_WORDS.get(inside.name, inside.name)}"
    if name.machines == 1:
        text = f"One machine with {name.devices} {title}, {joined}"
        return Cluster(given, text, base.device, (inside,))
    link = network.bytes_per_s * (name.devices if network.of == "device" else 1)
    level = Level("network", name.machines, link, network.latency_s, network.source)
    text = f"{name.machines} machines with {name.devices} {title} each, joined by {network.words}"
    return Cluster(given, text, base.device, (level, inside))


_WORDS = {"nvlink": "NVLink", "pcie": "PCIe"}


def _preset_files() -> dict[str, Traversable]:
    folder = resources.files("tensoropt_torch") / "clusters"
    return {
        entry.name.removesuffix(".toml"): entry
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    }


def _load(file: Traversable, where: str) -> Cluster:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TensorOptError(f"{where} is not valid TOML: {error}") from error
    return parse_cluster(data, where)
