"""What steps cost that are compiled as one graph, beside what people compile by hand.

    python benchmarks/compiled_steps.py --ranks 1 2

In the same processes the model, or on several DistributedDataParallel, trains in turn as it is and
under ``torch.compile``, under FSDP2 with each block compiled, and under a data parallel plan, with
and without ``compile=True``. A GPT whose layers are so small that only what is done between
operators counts; a GPT and a Llama of 4 layers of width 256, a vision transformer and a U-Net; in
float32 and under autocast to bfloat16. Ratios are those of one turn, of forward and backward, to
the way that is compiled by ``torch.compile``; slow steps have fewer turns. Writes its entries of
benchmarks/results/compiled_steps.json, and the table of docs/runtime.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import torch
import torch.distributed as dist
from gpt import GPT, GPTConfig
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.coverage.zoo.vision import UNet
from benchmarks.machine import machine, processor
from benchmarks.models.llama import Llama, LlamaConfig
from benchmarks.models.small import Batch
from benchmarks.overhead import PRECISIONS, TINY, casting
from benchmarks.page import fill_tables, rows_of
from benchmarks.ranks import WORKER, format_ratio, print_results, ratio_figures, results_of_ranks
from tensoropt_torch.measure.kept.files import write_atomically
from tensoropt_torch.module import parallelize
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.tasks import Example, PlanningOptions, task_of

RESULTS = Path(__file__).parent / "results" / "compiled_steps.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "runtime.md"
CPU = torch.device("cpu")
ROWS = 4  # of a rank
SMALL = GPTConfig(vocab_size=512, block_size=128, n_layer=4, n_head=4, n_embd=256)
LLAMA = LlamaConfig(vocab_size=512, n_layer=4, n_head=8, n_kv_head=2, n_embd=256, n_hidden=704)
PLAIN, COMPILED, FSDP2 = "as it is", "torch.compile", "FSDP2, compiled"
PLAN, PLAN_COMPILED = "plan", "plan, compiled"
# A turn is a step of each way; the first ones compile and make buckets.
WARM_UPS, SLOW_WARM_UPS, SLOW_TURN_S = 4, 2, 5.0
TURNS, LEAST_TURNS, TURNS_S = 80, 5, 40.0


class Loss(nn.Module):
    """The mean cross entropy of what a module gives for its first input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Scores (batch, classes, ...) and classes (batch, ...) to the mean."""
        scores = self.model(x)
        return F.cross_entropy(getattr(scores, "logits", scores), targets)


@dataclass(frozen=True)
class Compared:
    """A model and its batch of so many rows, and what FSDP2 gathers at a time."""

    make: Callable[[int], tuple[nn.Module, Batch]]
    blocks: Callable[[Any], Iterable[nn.Module]]


def gpt(config: GPTConfig, rows: int) -> tuple[nn.Module, Batch]:
    return GPT(config), tuple(torch.randint(config.vocab_size, (2, rows, config.block_size)))


def llama(rows: int) -> tuple[nn.Module, Batch]:
    """128 tokens a row."""
    return Llama(LLAMA), tuple(torch.randint(LLAMA.vocab_size, (2, rows, 128)))


def vit(rows: int) -> tuple[nn.Module, Batch]:
    """4 layers of width 256, images of 64 x 64 in patches of 8."""
    import transformers

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    images = {"image_size": 64, "patch_size": 8, "num_labels": 10}
    config = transformers.ViTConfig(**sizes, intermediate_size=1024, **images)
    model = Loss(transformers.ViTForImageClassification(config))
    return model, (torch.randn(rows, 3, 64, 64), torch.randint(10, (rows,)))


def unet(rows: int) -> tuple[nn.Module, Batch]:
    """16 to 64 channels, images of 64 x 64, each point of which has a class."""
    model = Loss(UNet(bilinear=False, width=16))
    return model, (torch.randn(rows, 1, 64, 64), torch.randint(2, (rows, 64, 64)))


MODELS = {
    "tiny layers": Compared(partial(gpt, TINY), lambda model: model.blocks),
    "GPT": Compared(partial(gpt, SMALL), lambda model: model.blocks),
    "Llama": Compared(llama, lambda model: model.layers),
    "ViT": Compared(vit, lambda model: model.model.vit.layers),
    "U-Net": Compared(
        unet, lambda model: [m for m in model.modules() if isinstance(m, nn.Sequential)]
    ),
}


def plan_of(model: nn.Module, batch: Batch, precision: str) -> Plan:
    """Data parallel, which is all that there is for one rank."""
    planning = PlanningOptions(optimizer="adamw", inputs="sharded", measure=False)
    with casting(precision, CPU):
        example = Example(model, batch, batch_norm_groups=dist.get_world_size())
        task = task_of(example, planning)
    (baseline,) = find_baselines(task, dist.get_world_size(), ("data parallel",))
    return baseline.plan(len(baseline.points) - 1)


def modules_of(compared: Compared, model: nn.Module, plan: Plan) -> dict[str, nn.Module]:
    """By way; each trains a copy."""
    several = dist.get_world_size() > 1

    def alone() -> nn.Module:
        own = copy.deepcopy(model)
        return DistributedDataParallel(own) if several else own

    compiled = alone()
    compiled.compile()
    made = {PLAIN: alone(), COMPILED: compiled}
    if several:
        made[FSDP2] = copy.deepcopy(model)
        for block in compared.blocks(made[FSDP2]):
            block.compile()
            fully_shard(block)
        fully_shard(made[FSDP2])
    assert plan.captured is not None
    for way, compile in ((PLAN, False), (PLAN_COMPILED, True)):
        own = copy.deepcopy(model)
        made[way] = parallelize(own, plan.captured, plan, CPU, compile=compile)
    return made


def turn(modules: dict[str, nn.Module], batch: Batch, precision: str) -> dict[str, float]:
    """Seconds of forward and backward by way."""
    found = {}
    for way, module in modules.items():
        dist.barrier()
        began = time.perf_counter()
        with casting(precision, CPU):
            loss: torch.Tensor = module(*batch)
        torch.autograd.backward(loss)
        found[way] = time.perf_counter() - began
        for parameter in module.parameters():
            parameter.grad = None
    return found


def measure(name: str, precision: str) -> dict[str, Any]:
    """Seconds of forward and backward by way, and their ratios."""
    compared, ranks = MODELS[name], dist.get_world_size()
    torch.manual_seed(0)
    torch.compiler.reset()
    model, batch = compared.make(ROWS * ranks)
    own = tuple(tensor.chunk(ranks)[dist.get_rank()].clone() for tensor in batch)
    modules = modules_of(compared, model, plan_of(model, batch, precision))
    turn(modules, own, precision)  # compiles
    second_s = torch.tensor(sum(turn(modules, own, precision).values()))
    dist.all_reduce(second_s, dist.ReduceOp.MAX)
    if second_s < SLOW_TURN_S:
        for _ in range(WARM_UPS - SLOW_WARM_UPS):
            turn(modules, own, precision)
    turns = min(TURNS, max(LEAST_TURNS, int(TURNS_S / second_s)))
    times = [turn(modules, own, precision) for _ in range(turns)]
    return {
        way: {
            "median_s": statistics.median(of_turn[way] for of_turn in times),
            **ratio_figures([of_turn[way] / of_turn[COMPILED] for of_turn in times]),
        }
        for way in modules
    }


def measure_all(precisions: Sequence[str], name: str) -> dict[str, Any]:
    return {precision: measure(name, precision) for precision in precisions}


def fill_page(results: dict[str, Any]) -> None:
    """The ratios, and ms."""
    rows = [
        [
            f"{model}, {precision}; {where}",
            *(
                f"{of_way[way]['median_s'] * 1e3:.1f}, {format_ratio(of_way[way])}"
                if way in of_way
                else "-"
                for way in (PLAIN, FSDP2, PLAN, PLAN_COMPILED)
            ),
            f"{of_way[COMPILED]['median_s'] * 1e3:.1f}",
            processor(job["machine"]),
        ]
        for where, job in results.items()
        for model, by_precision in job["models"].items()
        for precision, of_way in by_precision.items()
    ]
    head = ["ms, to those of torch.compile", PLAIN, FSDP2, PLAN, PLAN_COMPILED]
    fill_tables(
        PAGE, {"compiled_steps": rows_of([*head, "ms of torch.compile", "measured on"], rows)}
    )


def main() -> None:
    """Measures on each number of processes, writes the JSON and fills the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print_results(partial(measure_all, arguments.precisions), arguments.models)
        return
    chosen = ["--models", *arguments.models, "--precisions", *arguments.precisions]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for ranks in arguments.ranks:
        found = results_of_ranks(__file__, ranks, arguments=chosen)
        key = f"CPU, {ranks} {'process' if ranks == 1 else 'processes'}"
        earlier = results.get(key, {})
        kept = earlier["models"] if earlier.get("machine") == machine() else {}
        for name in found:
            found[name] = {**kept.get(name, {}), **found[name]}
        results[key] = {"machine": machine(), "models": {**kept, **found}}
        for name, by_precision in found.items():
            for precision, of_way in by_precision.items():
                for way, figures in of_way.items():
                    print(f"{key}, {name}, {precision}, {way}: {format_ratio(figures)}")
        write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")
    fill_page(results)


if __name__ == "__main__":
    main()
