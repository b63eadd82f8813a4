"""What it takes to go on under another plan: in place, and through a checkpoint.

    python benchmarks/moving.py

Goes through random plans of one model on 4 processes, 30 pairs. For each: seconds of ``move_to``;
seconds to save with ``torch.distributed.checkpoint``, to make the module of the new plan from a
model without values, and to load; and the most memory that a rank had besides, as it was told and
as it was stated. Both ways are taken in one run, in turns. Writes benchmarks/results/moving.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

import tensoropt_torch
from benchmarks.ranks import ratio_figures, results_of_ranks
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space, varied_strategy

RESULT = Path(__file__).parent / "results" / "moving.json"
RANKS, PAIRS, WIDTH, LAYERS = 4, 30, 1024, 4
BUCKET_BYTES = 8 * 2**20


class Layers(nn.Module):
    """34 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        halves = [(nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(layer for half in halves for layer in half)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.layers[::2], self.layers[1::2], strict=True):
            x = x + down(torch.relu(up(x)))
        return x.square().mean()


def inputs() -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0))


def plans() -> list[Plan]:
    with torch.device("meta"):
        model = Layers()
    cluster = tensoropt_torch.load_cluster("cpu")
    task = PlanningTask(capture(model, (torch.empty(8, WIDTH, device="meta"),)), cluster)
    settings = task.settings(RANKS)
    space = make_space(task.captured, settings)
    seeds = range(PAIRS + 1)
    made = [varied_strategy(space, seed) for seed in seeds]
    return [Plan.of(space, settings, task.captured, strategy) for strategy in made]


def step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    module(inputs()).backward()
    optimizer.step()
    optimizer.zero_grad()


def state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, of_optimizer = get_state_dict(module, optimizer)
    return {"model": weights, "optimizer": of_optimizer}


def differing(one: nn.Module, other: nn.Module) -> int:
    """Parameters whose bits differ, which lie alike."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return sum(
        not torch.equal(a._local_tensor, b._local_tensor)
        for a, b in pairs
        if isinstance(a, DTensor) and isinstance(b, DTensor)
    )


class Clock:
    """Seconds of what all ranks do."""

    def __init__(self) -> None:
        dist.barrier()
        self._start = time.perf_counter()

    def stop(self) -> float:
        dist.barrier()
        return time.perf_counter() - self._start


def measure() -> list[dict[str, float]]:
    first, *others = plans()
    torch.manual_seed(0)
    module = tensoropt_torch.parallelize(Layers(), first, check_capture=False)
    optimizer = torch.optim.AdamW(module.parameters())
    rows = []
    for plan in others:
        step(module, optimizer)
        row: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as own:
            folders = [own]
            dist.broadcast_object_list(folders, 0)
            clock = Clock()
            dcp.save(state(module, optimizer), checkpoint_id=f"{folders[0]}/state")
            row["save_s"] = clock.stop()
            clock = Clock()
            moved = module.move_to(plan, bucket_bytes=BUCKET_BYTES)
            row["move_s"] = clock.stop()
            clock = Clock()
            with torch.device("meta"):
                model = Layers()
            other = tensoropt_torch.parallelize(model, plan, check_capture=False)
            other_optimizer = torch.optim.AdamW(other.parameters())
            row["make_s"] = clock.stop()
            clock = Clock()
            kept = state(other, other_optimizer)
            dcp.load(kept, checkpoint_id=f"{folders[0]}/state")
            set_state_dict(
                other,
                other_optimizer,
                model_state_dict=kept["model"],
                optim_state_dict=kept["optimizer"],
            )
            row["load_s"] = clock.stop()
            row["differing"] = differing(module, other)
        largest = max(p._local_tensor.nbytes for p in module.parameters())
        row |= {
            "extra_bytes": moved.extra_bytes,
            "stated_bytes": 2 * BUCKET_BYTES + max(BUCKET_BYTES, largest),
            "sent_bytes": moved.sent_bytes,
        }
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().worker:
        torch.set_num_threads(1)
        tensoropt_torch.init()
        rows = measure()
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, rows)
        if dist.get_rank() == 0:
            print(json.dumps(everyone))
        dist.destroy_process_group()
        return
    everyone = results_of_ranks(__file__, RANKS, arguments=[])
    rows = everyone[0]
    for of_pair in zip(*everyone, strict=True):
        assert all(row["extra_bytes"] <= row["stated_bytes"] for row in of_pair), of_pair
        assert all(row["differing"] == 0 for row in of_pair), of_pair
    files = [row["save_s"] + row["make_s"] + row["load_s"] for row in rows]
    ratios = [through / row["move_s"] for through, row in zip(files, rows, strict=True)]
    figures = {
        "ranks": RANKS,
        "pairs": len(rows),
        "medians": {name: statistics.median(row[name] for row in rows) for name in rows[0]},
        "files_to_move": ratio_figures(ratios),
    }
    RESULT.write_text(json.dumps({**figures, "rows": rows}, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
