"""Stages on a slow network, beside the best plan without, and beside the same split by hand.

    python benchmarks/stages.py --ranks 2 4
    python benchmarks/stages.py --ranks 2 4 --link 1gbit
    python benchmarks/stages.py --ranks 4 --link 1gbit --two-machines

A language model trains in the same processes in turn: ``in stages``, cut into as many as there
are machines, or processes of one, under 1F1B; ``by hand``, with ``torch.distributed.pipelining``
(and DDP on the processes of a machine), the same cuts, schedule and number of micro-batches; and
``without stages``, what ``find_strategy`` gives, which has run its best plans here. All with Adam
(foreach off) and one global batch. Ratios are those of one turn: of times, and of the processor's
seconds of the rank that takes most of them, which what else the machine does changes less. The
step ``in stages`` is simulated from what forwards and backwards (with what is sent after them) and
the end of the step took and the rate of the link, and compared with what it took. ``load`` is the
machine's load average (1 minute) before and after: beside other jobs steps of all kinds take
longer. Writes its entries of benchmarks/results/stages.json.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import tensoropt_torch
from benchmarks.links import run_on_links
from benchmarks.ranks import mean_time, ratio_figures
from tensoropt_torch.module import stage_step
from tensoropt_torch.program.schedule import Hold, Join, ReduceGradients, Release
from tensoropt_torch.program.stage_schedules import (
    RunBackward,
    RunForward,
    SendGradients,
    SendValues,
    SumTied,
    one_forward_one_backward,
)
from tensoropt_torch.program.stage_times import StageTimes, timeline

RESULTS = Path(__file__).parent / "results" / "stages.json"
WIDTH, HEADS, LAYERS, VOCABULARY = 256, 4, 8, 4096
ROWS, TOKENS = 8, 32
MICRO_BATCHES = 4
TURNS, STEPS, WARM_UPS = 9, 4, 2
LINK = "TENSOROPT_BENCHMARK_LINK"  # its bytes per second, if it is limited


class Block(nn.Module):
    """Attention and two layers, both on what is normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        heads = self.attention(self.norms[0](x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.inner(self.norms[1](x))


class Model(nn.Module):
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Part(nn.Module):
    """A stage of a model, cut by hand."""

    def __init__(self, model: Model, stage: int, stages: int) -> None:
        super().__init__()
        size = LAYERS // stages
        self.table = model.table if stage == 0 else None
        self.blocks = model.blocks[stage * size : (stage + 1) * size]
        self.head = model.head if stage == stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.table is None else self.table(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def loss_of(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Texts, and others."""
    found = torch.randint(
        0, VOCABULARY, (2, ROWS, TOKENS), generator=torch.Generator().manual_seed(1)
    )
    return found[0], found[1]


def made() -> Model:
    """The same on all ranks, each time."""
    torch.manual_seed(0)
    return Model()


Step = Callable[[], float]  # gives the loss


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    """The same for all."""
    return torch.optim.Adam(parameters, 1e-4, foreach=False)


def step_of(parallel: nn.Module) -> Step:
    """One of ours."""
    x, y = batch()
    optimizer = optimizer_of(parallel.parameters())

    def step() -> float:
        optimizer.zero_grad()
        loss = parallel(x, y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def num_stages() -> int:
    """One for each machine, or for each process of one."""
    machines = int(os.environ["GROUP_WORLD_SIZE"])
    return machines if machines > 1 else dist.get_world_size()


def by_hand() -> Step:
    """With PyTorch's stages and schedule, and DDP within a stage."""
    stages = num_stages()
    mesh = init_device_mesh(
        "cpu", (stages, dist.get_world_size() // stages), mesh_dim_names=("stage", "copy")
    )
    number, copy = mesh.get_local_rank("stage"), mesh.get_local_rank("copy")
    copies = mesh["copy"].size()
    part: nn.Module = Part(made(), number, stages)
    if copies > 1:
        part = DistributedDataParallel(part, process_group=mesh.get_group("copy"))
    stage = PipelineStage(part, number, stages, torch.device("cpu"), group=mesh.get_group("stage"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = optimizer_of(part.parameters())
    x, y = (rows.chunk(copies)[copy] for rows in batch())

    def step() -> float:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        given = (x,) if number == 0 else ()
        target = {"target": y, "losses": losses} if number == stages - 1 else {}
        schedule.step(*given, **target)
        optimizer.step()
        found = torch.zeros(()) if not losses else torch.stack(losses).mean().detach() / copies
        dist.all_reduce(found)  # as ours, every rank has it
        return float(found)

    return step


def in_stages() -> nn.Module:
    """Cut where ``by_hand`` cuts."""
    stages = num_stages()
    cuts = [f"blocks.{LAYERS // stages * stage}" for stage in range(1, stages)]
    x, y = batch()
    given: Any = {"loss_fn": loss_of, "targets": (y,)}
    model = made()
    plan = tensoropt_torch.find_stages(
        model, (x,), stages=cuts, micro_batches=MICRO_BATCHES, **given
    )
    return tensoropt_torch.parallelize(model, plan, (x,), **given)


def without_stages() -> nn.Module:
    """What is fastest of ours without."""
    x, y = batch()
    given: Any = {"loss_fn": loss_of, "targets": (y,)}
    return tensoropt_torch.auto_parallel(made(), (x,), **given)


# What is part of what, in seconds of a stage; waiting is in none of it.
PARTS = {
    "forward": (RunForward, SendValues),
    "backward": (RunBackward, SendGradients),
    "step": (Hold, Release, ReduceGradients, SumTied, Join),
}


class Watched:
    """Seconds of each ``PARTS`` of a step in stages on this rank."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._actions: Any = vars(stage_step)["_RUN"]
        self._before = dict(self._actions)

    def __enter__(self) -> Watched:
        for name, kinds in PARTS.items():
            for kind in kinds:
                self._actions[kind] = self._watching(name, self._before[kind])
        return self

    def __exit__(self, *_: object) -> None:
        self._actions.update(self._before)

    def _watching(self, name: str, run: Any) -> Any:
        def watching(step: Any, action: Any) -> None:
            start = time.perf_counter()
            run(step, action)
            self.seconds[name].append(time.perf_counter() - start)

        return watching


def simulated(parallel: nn.Module) -> dict[str, Any]:
    """A call in stages from its parts, by the seconds of each; beside what calls took. Median of
    calls, each with its own parts: what else the machine does is in both."""
    x, y = batch()
    stages = num_stages()
    sent = ROWS // MICRO_BATCHES * TOKENS * WIDTH * 4  # by all processes of a stage
    rate = float(os.environ.get(LINK, "inf"))
    transfers = (sent / rate,) * (stages - 1)
    ratios = []
    for _ in range(TURNS * STEPS):
        dist.barrier()
        with Watched() as watched:
            start = time.perf_counter()
            parallel(x, y)
            took = time.perf_counter() - start
        own = [sum(watched.seconds[name]) / MICRO_BATCHES for name in ("forward", "backward")]
        own += [sum(watched.seconds["step"]), took]
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
        # Ranks of a stage follow each other; they go on together, as the slowest of them does.
        size = len(every) // stages
        ranks = [every[first : first + size] for first in range(0, len(every), size)]
        parts = [[max(part) for part in zip(*stage, strict=True)] for stage in ranks]
        forward, backward, step, calls = (tuple(part) for part in zip(*parts, strict=True))
        times = StageTimes(forward, backward, transfers, transfers, step)
        schedules = one_forward_one_backward(stages, MICRO_BATCHES)
        ratios.append(timeline(schedules, times).step_s / max(calls))
    return ratio_figures(ratios)


def most(value: float) -> float:
    """Of all ranks."""
    found = torch.tensor(value)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def measure(_: str) -> dict[str, Any]:
    """Rows by label."""
    load = [os.getloadavg()[0]]
    parallel = in_stages()
    steps = {
        "in stages": step_of(parallel),
        "by hand": by_hand(),
        "without stages": step_of(without_stages()),
    }
    losses = {label: [step() for _ in range(WARM_UPS)] for label, step in steps.items()}
    first = losses["by hand"]
    for label, found in losses.items():
        assert all(abs(a - b) < 1e-3 for a, b in zip(found, first, strict=True)), (label, losses)
    seconds: dict[str, list[float]] = {label: [] for label in steps}
    processor: dict[str, list[float]] = {label: [] for label in steps}
    for turn in range(TURNS):
        order: Sequence[str] = list(steps) if turn % 2 else list(reversed(steps))
        for label in order:
            began = time.process_time()
            seconds[label].append(mean_time(steps[label], STEPS))
            processor[label].append(most(time.process_time() - began))
    rows: dict[str, Any] = {}
    for label in ("by hand", "without stages"):
        for what, found in (("", seconds), (", processor", processor)):
            pairs = zip(found["in stages"], found[label], strict=True)
            rows[f"in stages to {label}{what}"] = ratio_figures([a / b for a, b in pairs])
    rows["simulated to measured"] = simulated(parallel)
    load.append(os.getloadavg()[0])
    medians = {label: statistics.median(found) for label, found in seconds.items()}
    rows["all"] = {"seconds": medians, "load": load}
    return rows


def format_row(row: dict[str, Any]) -> str:
    """On one line."""
    if "seconds" in row:
        parts = [f"{label} {found:.3f} s" for label, found in row["seconds"].items()]
        return ", ".join([*parts, f"load {row['load']}"])
    low, high = row["quartiles_of_ratio"]
    return f"{row['median_ratio']:.3f} ({low:.3f} to {high:.3f})"


def rate_of(link: str) -> float:
    """Bytes per second of a rate such as ``1gbit``."""
    factors = {"gbit": 1e9, "mbit": 1e6}
    unit = next(unit for unit in factors if link.endswith(unit))
    return float(link.removesuffix(unit)) * factors[unit] / 8


if __name__ == "__main__":
    if "--link" in sys.argv:
        os.environ[LINK] = str(rate_of(sys.argv[sys.argv.index("--link") + 1]))
    run_on_links(__file__, __doc__, measure, ["language model"], RESULTS, format_row)
