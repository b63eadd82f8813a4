"""What ``test_no_stalls`` starts on every rank: a GPT that trains with overlap, while ranks
are late at random. Rank 0 prints the seconds of the steps, by plan, as JSON."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime import ops, reuse
from tensoropt_torch.space.search_space import make_space, varied_strategy

CPU = torch.device("cpu")
CORES = 2
WIDTH, HEADS, TOKENS, BATCH, VOCABULARY = 128, 4, 32, 8, 256
LATE_S = 0.03  # at most, before a step
WARM_UPS = 3
BEGINNINGS = (
    torch.ops.tensoropt.begin_value.default,
    torch.ops.tensoropt.begin_gathers.default,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.inner = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.inner(x)


class Gpt(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.table(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def plans(task: PlanningTask) -> Iterator[tuple[str, Plan]]:
    """Gradients that are summed; parameters that are gathered, in backward again; and a mix
    of everything."""
    ranks = dist.get_world_size()
    settings = replace(task.settings(ranks), overlap=True)
    for baseline in find_baselines(task, ranks, ("data parallel", "ZeRO-3")):
        yield baseline.name, replace(baseline.plan(0), settings=settings)
    space = make_space(task.captured, settings)
    yield "random", Plan.of(space, settings, task.captured, varied_strategy(space, 1))


def step_times(module: nn.Module, tokens: torch.Tensor, steps: int) -> list[float]:
    """Of the slowest rank, in s."""
    late = random.Random(dist.get_rank())
    optimizer = torch.optim.AdamW(module.parameters())
    times = []
    for _ in range(WARM_UPS + steps):
        start = time.monotonic()
        if late.random() < 0.3:
            time.sleep(late.uniform(0, LATE_S))
        module(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.monotonic() - start)
    slowest = torch.tensor(times[WARM_UPS:])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [float(seconds) for seconds in slowest]


def calls(module: ParallelModule, *targets: object) -> int:
    """How many nodes of the rank's graph call one of them."""
    return sum(node.target in targets for node in module.rank_graph.graph.nodes)


def main(layers: int, steps: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    torch.set_num_threads(1)
    tensoropt_torch.init(timeout_s=120)
    torch.manual_seed(0)
    model = Gpt(layers)
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS))
    task = PlanningTask(capture(model, (tokens,)), tensoropt_torch.load_cluster("cpu"))
    mesh = task.settings(dist.get_world_size()).mesh_axes
    context = RankContext.make([size for size, _ in mesh], CPU)
    found = {}
    for name, plan in plans(task):
        module = parallelize(model, task.captured, plan, CPU, context)
        ops.reset_collective_counts()
        found[name] = {
            "step_s": step_times(module, tokens, steps),
            "collectives": ops.collective_counts().collectives,
            "begun_ahead": calls(module, *BEGINNINGS),
            "replayed": calls(module, reuse.keep_before),
        }
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
