"""Published rows in stages beside predictions of the same stages on the same machines.

    python -m benchmarks.published.stages --rows 57 58

What is predicted has the degrees, stages, chunks and micro-batches of a row: tensor parallelism on
the innermost devices, as many layers in each part, data parallelism across, with parameters that
are sharded, or held, whichever is faster. Operations per second are counted as for other rows.
Where products run in float8 they are taken at the data sheet's peak of float8, and all else at
bfloat16's; casts and scales are not counted. Writes benchmarks/results/published_stages.json, where
other rows stay, and the table of docs/published.md.
"""

from __future__ import annotations

import argparse
import json
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.models.gpt import GPTConfig, gpt
from benchmarks.models.llama import Llama, LlamaConfig
from benchmarks.page import fill_tables, rows_of
from benchmarks.published.predict import OPTIMIZER
from benchmarks.published.rows import Row, cluster_of, read_rows
from tensoropt_torch import Cluster, TensorOptError
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.staging.grids import ByRoles, layer_cuts
from tensoropt_torch.staging.options import StageOptions
from tensoropt_torch.staging.parts import plan_stages

RESULTS = Path(__file__).resolve().parents[1] / "results" / "published_stages.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "published.md"
FLOAT8_FLOPS_PER_S = 1979e12  # NVIDIA H100 data sheet (SXM), dense


@dataclass(frozen=True)
class Shape:
    """What a row trains, and how.

    Attributes:
        model: a GPT's or a Llama's sizes.
        sequence: tokens of one, each a micro-batch of a data-parallel part.
        batch: sequences of a step.
        tensor, stages, chunks: the degrees.
        float8: products run in it.
        recompute: operators run again, within a device's memory or, where that cannot be, within
            twice, four times, ... of it; otherwise nothing does, and memory has no limit.
        speed: which of the figures of the row, of several.
    """

    model: GPTConfig | LlamaConfig
    sequence: int
    batch: int
    tensor: int
    stages: int
    chunks: int = 1
    float8: bool = False
    recompute: bool = False
    speed: int = 0


_VOCABULARY = 131072


def _gpt(heads: int, width: int, layers: int, stages: int, batch: int) -> Shape:
    config = GPTConfig(_VOCABULARY, 4096, layers, heads, width, tie_weights=False)
    return Shape(config, 4096, batch, 8, stages)


_LLAMA_70B = LlamaConfig(n_layer=80, n_head=64, n_embd=8192, n_hidden=28672)
_LLAMA_405B = LlamaConfig(n_layer=126, n_head=128, n_embd=16384, n_hidden=53248)
_LLAMA_2 = partial(LlamaConfig, vocab_size=32000, rope_base=10000)
_LLAMA_2_13B = _LLAMA_2(n_layer=40, n_head=40, n_kv_head=40, n_embd=5120, n_hidden=13824)
_LLAMA_2_70B = _LLAMA_2(n_layer=80, n_head=64, n_embd=8192, n_hidden=28672)
_GPT_3 = GPTConfig(51200, 2048, 96, 96, 12288, tie_weights=False)
_float8 = partial(Shape, float8=True)

# By row, and by its figure where it has several.
SHAPES: dict[str, Shape] = {
    "57": _gpt(64, 8192, 84, 2, 384),
    "58": _gpt(80, 10240, 92, 4, 768),
    "59": _gpt(96, 12288, 96, 6, 1152),
    "60": _gpt(128, 16384, 96, 8, 1536),
    "61": _gpt(144, 18432, 112, 16, 3072),
    "76": _float8(_LLAMA_405B, 8192, 256, 8, 8, recompute=True),
    "76, interleaved": _float8(_LLAMA_405B, 8192, 256, 8, 8, chunks=2, recompute=True, speed=1),
    "77": _float8(_LLAMA_405B, 32768, 64, 8, 8, recompute=True),
    "85": _float8(_LLAMA_70B, 8192, 128, 4, 8, chunks=5),
    "87": _float8(_LLAMA_70B, 8192, 256, 4, 8, chunks=5),
    "88": _float8(_LLAMA_70B, 4096, 32, 4, 4, chunks=5),
    "89": _float8(_LLAMA_70B, 4096, 32, 4, 8),
    "90": _float8(_LLAMA_70B, 4096, 32, 8, 4),
    "93": _float8(_LLAMA_2_13B, 4096, 128, 1, 4, chunks=10),
    "94": _float8(_LLAMA_2_70B, 4096, 128, 4, 4, chunks=20),
    "97": _float8(_GPT_3, 2048, 256, 4, 8, chunks=6),
}


def with_float8(cluster: Cluster) -> Cluster:
    """With products of bfloat16 at the peak of float8, and attention as fast as it was."""
    device = cluster.device
    before = device.flops_per_s["bfloat16"]
    efficiency = device.efficiency
    assert efficiency.attention is not None
    share = efficiency.attention * before / FLOAT8_FLOPS_PER_S
    device = replace(
        device,
        flops_per_s={**device.flops_per_s, "bfloat16": FLOAT8_FLOPS_PER_S},
        efficiency=replace(efficiency, attention=share),
    )
    return replace(cluster, device=device)


def planned(task: PlanningTask, row: Row, shape: Shape) -> StagedPlan:
    """The fastest with sharded, or with whole parameters."""
    replicas = row.devices // (shape.stages * shape.tensor)
    micro_batches = shape.batch // replicas
    schedule = "interleaved" if shape.chunks > 1 else "1f1b"
    parts = layer_cuts(micro_batched(task.captured, micro_batches), shape.stages * shape.chunks)
    options = StageOptions(parts, micro_batches, schedule, shape.chunks)
    roles = ("shard", "data") if replicas > 1 else ("shard",)

    def within(limit: float, role: str) -> StagedPlan:
        own = replace(task, recompute=shape.recompute)
        find = ByRoles(own, role, limit / shape.chunks, shape.tensor)
        return plan_stages(own, options, row.devices, find=find)

    if not shape.recompute:
        return min((within(math.inf, role) for role in roles), key=lambda plan: plan.time_s)
    for times in (1, 2, 4, 8):
        with suppress(TensorOptError):
            return within(times * task.cluster.device.memory_bytes, "shard")
    raise TensorOptError(f"row {row.id} needs more than eight times the memory of a device")


def flops_per_token(shape: Shape, parameters: int) -> float:
    """By the usual count."""
    config = shape.model
    return 6 * parameters + 12 * config.n_layer * config.n_embd * shape.sequence


def published(row: Row, shape: Shape, per_token: float) -> float:
    """Operations a second of a device: as published, or of published tokens."""
    text = row.published["speed"].split(";")[shape.speed].strip()
    number = float(text.partition(" ")[0].replace(",", ""))
    is_tokens = row.source != "G" and "TFLOP" not in text
    return number * per_token if is_tokens else number * 1e12


def predicted(name: str) -> dict[str, Any]:
    """Of a row: operations a second of a device, published and predicted, and bytes of a device."""
    shape = SHAPES[name]
    row = next(row for row in read_rows()[0] if row.id == int(name.partition(",")[0]))
    with torch.device("meta"):
        is_gpt = isinstance(shape.model, GPTConfig)
        model = (gpt(shape.model) if is_gpt else Llama(shape.model)).bfloat16()  # type: ignore[arg-type]
        tokens = tuple(torch.zeros(shape.batch, shape.sequence, dtype=torch.long) for _ in "xy")
    cluster = with_float8(cluster_of(row)) if shape.float8 else cluster_of(row)
    task = PlanningTask(capture(model, tokens), cluster, optimizer=OPTIMIZER)
    plan = planned(task, row, shape)
    per_token = flops_per_token(shape, sum(p.numel() for p in model.parameters()))
    expected = published(row, shape, per_token)
    found = per_token * shape.batch * shape.sequence / plan.time_s / row.devices
    return {
        "model": row.model,
        "devices": row.devices,
        "stages": shape.stages,
        "chunks": shape.chunks,
        "micro_batches": plan.micro_batches,
        "float8": shape.float8,
        "published_flops_per_s": expected,
        "predicted_flops_per_s": found,
        "error": found / expected - 1,
        "memory_gib": plan.memory_bytes / 2**30,
    }


def fill_page(results: dict[str, dict[str, Any]]) -> None:
    """TFLOP/s of a device."""
    head = ["row, devices", "stages, chunks, micro-batches", "published", "predicted", "GiB"]
    rows = [
        [
            f"{name}: {row['model'].partition(' (')[0]}, {row['devices']:,}"
            + (", float8" if row["float8"] else ""),
            f"{row['stages']}, {row['chunks']}, {row['micro_batches']}",
            f"{row['published_flops_per_s'] / 1e12:.0f}",
            f"{row['predicted_flops_per_s'] / 1e12:.0f} ({row['error']:+.0%})",
            f"{row['memory_gib']:.0f}",
        ]
        for name, row in ((name, results[name]) for name in SHAPES if name in results)
    ]
    fill_tables(PAGE, {"published_stages": rows_of(head, rows)})


def main() -> None:
    """Predicts rows, prints and keeps them, and fills the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in parser.parse_args().rows:
        known[name] = found = predicted(name)
        print(name, found, flush=True)
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    fill_page(known)


if __name__ == "__main__":
    main()
