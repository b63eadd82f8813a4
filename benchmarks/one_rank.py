"""One rank of several on one device: its memory and its operators' times, predicted and
measured.

    python benchmarks/one_rank.py --ranks 8                  # on a GPU
    python benchmarks/one_rank.py --ranks 8 --device cpu --small

The other ranks are made up: a fake process group copies what it has where others would
send. What a rank allocates and computes is real. Memory is that of PyTorch's allocator,
which the prediction does not ask. Calls of operators are measured; every second one is
predicted by volume over measured rates, and from the others. On a CPU the buffers of Gloo
are predicted and not there. Writes its entries of benchmarks/results/one_rank.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from gpt import GPT, GPTConfig  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

import tensoropt_torch  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from benchmarks.memory import models as small_models  # noqa: E402
from benchmarks.models.catalogue import Example  # noqa: E402
from benchmarks.models.llama import Llama, LlamaConfig  # noqa: E402
from benchmarks.models.wide_resnet import WideResNet, WideResNetConfig  # noqa: E402
from tensoropt_torch import _C  # noqa: E402
from tensoropt_torch.frontend import capture  # noqa: E402
from tensoropt_torch.measure.hardware import measure_cluster  # noqa: E402
from tensoropt_torch.measure.kept.files import write_atomically  # noqa: E402
from tensoropt_torch.measure.kept.operator_times import records  # noqa: E402
from tensoropt_torch.measure.runs.operators import OperatorProfiler, picks_of  # noqa: E402
from tensoropt_torch.measure.runs.training import Training  # noqa: E402
from tensoropt_torch.module.context import RankContext  # noqa: E402
from tensoropt_torch.plan import Plan  # noqa: E402
from tensoropt_torch.planner.candidates import find_frontier  # noqa: E402
from tensoropt_torch.planner.task import PlanningTask  # noqa: E402
from tensoropt_torch.runtime.meshes import all_axis_sets  # noqa: E402
from tensoropt_torch.simulate import StepSettings, simulate_step  # noqa: E402
from tensoropt_torch.space.search_space import make_space, varied_strategy  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "one_rank.json"
CLUSTERS = {"cuda": "h100-8", "cpu": "cpu"}
DEVICE_BUDGET_S = 10.0
STEPS = 6


def _tokens(batch: int, length: int, vocab_size: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randint(vocab_size, (2, batch, length)))


def gpt2() -> Example:
    """GPT-2 small, 16 x 1024 tokens."""
    config = GPTConfig(vocab_size=50304, block_size=1024, n_layer=12, n_head=12, n_embd=768)
    return GPT(config), _tokens(16, 1024, config.vocab_size)


def llama_block() -> Example:
    """A block of Llama 3 8B, with a small vocabulary, 8 x 2048 tokens."""
    config = LlamaConfig(vocab_size=8192, n_layer=1)
    return Llama(config), _tokens(8, 2048, config.vocab_size)


def resnet() -> Example:
    """ResNet-50, 64 images of 224 x 224."""
    config = WideResNetConfig(blocks=(3, 4, 6, 3), width=64, n_class=1024)
    return WideResNet(config), (torch.randn(64, 3, 224, 224), torch.randint(1024, (64,)))


MODELS: dict[str, Callable[[], Example]] = {
    "gpt2": gpt2,
    "llama": llama_block,
    "resnet": resnet,
}
SMALL_MODELS: dict[str, Callable[[], Example]] = {
    "gpt2": small_models.gpt,
    "llama": small_models.llama,
    "resnet": small_models.resnet,
}


def plans(task: PlanningTask, space: _C.SearchSpace, strategies: int) -> Iterator[tuple[str, Plan]]:
    """The ends of the frontier, then random strategies of the task's space."""
    ranks = dist.get_world_size()
    frontier = find_frontier(task, ranks)
    yield "smallest", frontier.smallest.plan
    yield "fastest", frontier.fastest.plan
    settings = task.settings(ranks)
    for seed in range(strategies):
        yield (
            f"random, seed {seed}",
            Plan.of(space, settings, task.captured, varied_strategy(space, seed)),
        )


def operator_errors(
    task: PlanningTask, context: RankContext, budget_s: float
) -> tuple[dict[str, Any], PlanningTask]:
    """Calls that were left out of what predicts them, and the task with all of them."""
    settings = task.settings(context.num_devices)
    space = make_space(task.captured, settings)
    chosen = [varied_strategy(space, seed) for seed in range(6)]
    context.groups.create(all_axis_sets(context.sizes))
    profiler = OperatorProfiler(task.captured, space, context.device, context.groups.name)
    found = profiler.measure(picks_of(space, chosen), budget_s)
    measured_s = {sample.key: sample.forward_s + sample.backward_s for sample in found.samples}
    families = sorted({sample.family for sample in found.samples})

    def knowing(samples: list[Any]) -> PlanningTask:
        known = records(samples, families)
        return replace(task, operators=known, measured_on=context.num_devices)

    held_back = {sample.key for sample in found.samples[1::2]}
    predicted: dict[str, dict[str, tuple[float, float]]] = {}
    for way, samples in (("volume over rates", []), ("neighbours", found.samples[::2])):
        other = make_space(task.captured, knowing(samples).settings(context.num_devices))
        predicted[way] = {
            row.key: (row.time_s, row.error)
            for strategy in chosen
            for row in other.estimates(strategy)
            if row.key in held_back
        }
    figures: dict[str, Any] = {"measured": len(measured_s), "failed": found.failed}
    for way, rows in predicted.items():
        errors = [abs(seconds / measured_s[key] - 1) for key, (seconds, _) in rows.items()]
        # Of all the time, since most calls are small ones.
        total_s = sum(measured_s[key] for key in rows)
        figures[way] = {
            "median_error": statistics.median(errors),
            "error_of_total": abs(sum(s for s, _ in rows.values()) / total_s - 1),
        }
    stated = [error for _, error in predicted["neighbours"].values()]
    figures["neighbours"]["median_stated_error"] = statistics.median(stated)
    return figures, knowing(found.samples)


def measure(
    example: Example, device: torch.device, strategies: int, budget_s: float
) -> dict[str, Any]:
    """The first rank's memory in bytes and seconds of computing, by plan."""
    model, args = example
    cluster = tensoropt_torch.load_cluster(CLUSTERS[device.type])
    cluster = measure_cluster(cluster, device, DEVICE_BUDGET_S)
    task = PlanningTask(capture(model, args), cluster)
    sizes = [size for size, _ in task.settings(dist.get_world_size()).mesh_axes]
    context = RankContext.make(sizes, device)
    operators, task = operator_errors(task, context, budget_s)
    step = replace(StepSettings.on(device, task.optimizer), gloo=False)  # the group is made up
    space = make_space(task.captured, task.settings(context.num_devices))
    inputs = tuple(value.to(device) for value in args)

    def make_optimizer(module: torch.nn.Module) -> torch.optim.Optimizer:
        return step.make_optimizer(list(module.parameters()))

    rows = []
    for label, plan in plans(task, space, strategies):
        training = Training.of(model, plan, context, make_optimizer, (tuple(inputs), {}))
        times = training.times(STEPS)
        rows.append(
            {
                "plan": label,
                "simulated_bytes": simulate_step(plan, task.captured, step).peak_bytes,
                "measured_bytes": training.peak_bytes(inputs),
                "search_bytes": plan.memory_bytes,
                "computing_s": space.compute_time(plan.choices.strategy(space)),
                "measured_computing_s": times.step_s - times.network_s,
            }
        )
        del training
    context.groups.close()
    memory = [abs(row["simulated_bytes"] / row["measured_bytes"] - 1) for row in rows]
    return {
        "mean_error_of_memory": statistics.mean(memory),
        "operators": operators,
        "plans": rows,
    }


def main() -> None:
    """Measure the models that are named, print the errors, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--device", default="cuda", choices=list(CLUSTERS))
    parser.add_argument("--strategies", type=int, default=5)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for operators")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--small", action="store_true", help="models of some MiB")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; try --device cpu --small")
    device = torch.empty(0, device=arguments.device).device  # with its number, as tensors have it
    name = torch.cuda.get_device_name() if device.type == "cuda" else machine()["cpu"]
    makers = SMALL_MODELS if arguments.small else MODELS
    output: Path = arguments.output
    results = json.loads(output.read_text()) if output.exists() else {}
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=arguments.ranks, store=FakeStore())
    for model in arguments.models:
        torch.manual_seed(0)
        found = measure(makers[model](), device, arguments.strategies, arguments.budget)
        size = "small" if arguments.small else "full"
        results[f"{name}, 1 of {arguments.ranks}, {model}, {size}"] = {
            "machine": machine(),
            **found,
        }
        print(f"{model}: memory {found['mean_error_of_memory']:.2%}, {found['operators']}")
        write_atomically(output, json.dumps(results, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
