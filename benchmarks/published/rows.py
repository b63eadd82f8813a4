"""The published rows, their models and their machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.models.gpt import GPTConfig, gpt
from benchmarks.models.llama import Llama, LlamaConfig
from tensoropt_torch import Cluster, load_cluster

FOLDER = Path(__file__).parent
MACHINE_SIZE = 8


@dataclass(frozen=True)
class Row:
    """A published figure; the fields are those of rows.json."""

    record: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.record.get(name)

    @property
    def batch(self) -> int:
        """Sequences of a step: what all devices together compute at once, as often as they do."""
        return int(self.local_batch * self.devices // self.tensor * self.accumulation)

    @property
    def has_one_end(self) -> bool:
        """Whether it can be planned, with recomputation as ours: it has one prediction."""
        return not self.missing and self.recompute != "selective"

    def tokens_per_s(self, parameters: int, layers: int, width: int) -> float | None:
        """Of one device; where operations per second were published, by the usual count of them
        for a token."""
        if self.flops_per_s is None:
            return self.record.get("tokens_per_s")
        return float(self.flops_per_s / (6 * parameters + 12 * layers * width * self.sequence))


def read_rows() -> tuple[list[Row], dict[str, dict[str, str]]]:
    """All rows, and the sources by their letters."""
    data = json.loads((FOLDER / "rows.json").read_text())
    return [Row(record) for record in data["rows"]], data["sources"]


def _gpt(
    length: int, layers: int, heads: int, width: int, vocabulary: int = 50368, mpt: bool = True
) -> nn.Module:
    """MPT has no biases and one matrix for both ends."""
    config = GPTConfig(vocabulary, length, layers, heads, width, bias=not mpt, tie_weights=mpt)
    return gpt(config)


def _llama(_: int, **sizes: int) -> nn.Module:
    return Llama(LlamaConfig(**sizes))


_LLAMA_2 = {"vocab_size": 32000, "rope_base": 10000}

# Shapes: llm-foundry, scripts/train/yamls/pretrain; the models' own configurations.
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "MPT 760M": partial(_gpt, layers=24, heads=12, width=1536),
    "MPT 1B": partial(_gpt, layers=24, heads=16, width=2048),
    "MPT 3B": partial(_gpt, layers=32, heads=20, width=2560),
    "MPT 7B": partial(_gpt, layers=32, heads=32, width=4096),
    "MPT 13B": partial(_gpt, layers=40, heads=40, width=5120),
    "MPT 30B": partial(_gpt, layers=48, heads=56, width=7168),
    "MPT 70B": partial(_gpt, layers=80, heads=64, width=8192),
    "GPT 1.7B (16 heads, 2048, 24 layers, vocab 131072)": partial(
        _gpt, layers=24, heads=16, width=2048, vocabulary=131072, mpt=False
    ),
    "Llama 3.1 8B": _llama,
    "Llama 2 7B shape": partial(_llama, **_LLAMA_2, n_kv_head=32, n_hidden=11008),
    "Llama 2 13B shape": partial(
        _llama, **_LLAMA_2, n_layer=40, n_head=40, n_kv_head=40, n_embd=5120, n_hidden=13824
    ),
    "Llama 2 34B shape": partial(
        _llama, **_LLAMA_2, n_layer=48, n_head=64, n_embd=8192, n_hidden=22016
    ),
    "Llama 2 70B shape": partial(
        _llama, **_LLAMA_2, n_layer=80, n_head=64, n_embd=8192, n_hidden=28672
    ),
    "Qwen3 32B": partial(
        _llama,
        vocab_size=151936,
        n_layer=64,
        n_head=64,
        n_embd=5120,
        n_hidden=25600,
        n_head_size=128,
    ),
}


def example_of(row: Row) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model in bfloat16 and the tokens of one step, on the meta device."""
    with torch.device("meta"):
        model = MODELS[row.model](row.sequence).bfloat16()
        tokens = tuple(torch.zeros(row.batch, row.sequence, dtype=torch.long) for _ in "xy")
    return model, tokens


def cluster_of(row: Row) -> Cluster:
    """The machines of a row, as many as it has."""
    cluster = load_cluster(FOLDER / "clusters" / f"{row.machine}.toml")
    machines = row.devices // MACHINE_SIZE
    network, inside = cluster.levels
    levels = (replace(network, count=machines), inside) if machines > 1 else (inside,)
    return replace(cluster, levels=levels)
