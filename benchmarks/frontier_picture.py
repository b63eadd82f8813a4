"""The picture of the README: the frontier of Llama 3 8B on 8 H100, and known strategies beside it.

    python -m benchmarks.frontier_picture

Batches of 16 x 4,096 tokens in bfloat16, AdamW with states and copies of parameters in float32,
planned on the preset ``h100-8``: nothing is measured. The frontier may recompute, the others keep
what they compute. Writes docs/frontier.svg.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure

import tensoropt_torch
from benchmarks.models.llama import Llama, LlamaConfig

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "frontier.svg"
CLUSTER = "h100-8"
SHOWN = {"data parallel": "s", "ZeRO-3": "^", "Megatron": "D"}  # baselines and their markers
OPTIMIZER = tensoropt_torch.OptimizerModel("adamw", "float32", True)


def llama(sequences: int) -> tensoropt_torch.Example:
    """Llama 3 8B in bfloat16, with so many sequences of 4,096 tokens."""
    tokens = torch.zeros(sequences, 4096, dtype=torch.long, device="meta")
    with torch.device("meta"):
        model = Llama(LlamaConfig()).bfloat16()
    return tensoropt_torch.Example(model, (tokens, tokens))


def main() -> None:
    """Plans and draws."""
    matplotlib.rcParams["svg.hashsalt"] = "frontier"  # the same file from the same figures
    example = llama(16)
    options = tensoropt_torch.PlanningOptions(cluster=CLUSTER, optimizer=OPTIMIZER)
    recomputing = replace(options, recompute=True)
    frontier = tensoropt_torch.find_frontier(example, planning=recomputing)
    comparison = tensoropt_torch.compare(example, planning=options)
    axes = frontier.plot(Figure(figsize=(6.4, 3.6), layout="constrained").subplots())
    axes.lines[0].set_label(f"frontier, {len(frontier)} strategies")
    for baseline in comparison.baselines:
        if baseline.name in SHOWN and baseline.points:
            memory = [point[0] / 2**30 for point in baseline.points]
            times = [point[1] * 1e3 for point in baseline.points]
            axes.plot(memory, times, SHOWN[baseline.name], label=baseline.name, markersize=5)
    limit = tensoropt_torch.load_cluster(CLUSTER).device.memory_bytes / 2**30
    axes.axvline(limit, color="grey", linestyle=":", label="memory of a device")
    axes.set_title("Llama 3 8B, 16 x 4,096 tokens, 8 H100, predicted", fontsize="medium")
    axes.legend(fontsize="small")
    axes.figure.savefig(OUTPUT, metadata={"Date": None})
    print(f"{len(frontier)} points; {comparison!r}")


if __name__ == "__main__":
    main()
