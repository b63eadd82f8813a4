"""Steps of a GPT on one device: the model and a plan of ours, as they are, compiled, and on GPUs as
CUDA graphs.

A plan for one device should cost nothing beside the model as it is. Each way is tried by
itself, in float32 and under autocast to bfloat16, with the same optimizer and batch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from benchmarks.gpu_check.steps import ROOT
from benchmarks.gpu_check.worker import arguments, first_device, report, said_by
from tensoropt_torch.measure.machine.clock import SharedClock, undisturbed_s
from tensoropt_torch.measure.runs.peak_memory import measure_peak_bytes

sys.path.insert(0, str(ROOT / "examples"))

from gpt import GPT, GPTConfig

FULL = (GPTConfig(vocab_size=50304, block_size=1024, n_layer=12, n_head=12, n_embd=768), 8)
SMALL = (GPTConfig(vocab_size=256, block_size=64, n_layer=1, n_head=2, n_embd=64), 4)
WARM_UPS, STEPS = 4, 12
MOST_SECONDS = 8.0  # of measuring one way

Batch = tuple[torch.Tensor, ...]
Way = Callable[[nn.Module, Batch], nn.Module]


def eager(model: nn.Module, _: Batch) -> nn.Module:
    return model


def compiled(model: nn.Module, _: Batch) -> nn.Module:
    model.compile()
    return model


def ours(model: nn.Module, batch: Batch) -> nn.Module:
    return tensoropt_torch.auto_parallel(model, batch, measure=False)


def ours_compiled(model: nn.Module, batch: Batch) -> nn.Module:
    return tensoropt_torch.auto_parallel(model, batch, measure=False, compile=True)


def cuda_graph(model: nn.Module, _: Batch) -> nn.Module:
    model.compile(mode="reduce-overhead")
    return model


def ours_cuda_graph(model: nn.Module, batch: Batch) -> nn.Module:
    return tensoropt_torch.auto_parallel(model, batch, measure=False, compile="reduce-overhead")


WAYS: tuple[Way, ...] = (eager, compiled, ours, ours_compiled)
ON_GPUS: tuple[Way, ...] = (cuda_graph, ours_cuda_graph)
OURS = ("ours", "ours_compiled", "ours_cuda_graph")


def measured(way: Way, precision: str, device: torch.device, small: bool) -> dict[str, Any]:
    """Seconds of a step, those in which the host calls it, its peak of memory, and the losses of
    the first steps."""
    config, rows = SMALL if small else FULL
    torch.manual_seed(0)
    model = GPT(config).to(device)
    batch = tuple(torch.randint(config.vocab_size, (2, rows, config.block_size), device=device))

    def context() -> AbstractContextManager[Any]:
        if precision == "float32":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16)

    with context():
        module = way(model, batch)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        with context():
            loss: torch.Tensor = module(*batch)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = [float(step()) for _ in range(WARM_UPS)]
    clock = SharedClock(device)
    times: list[float] = []
    calls: list[float] = []
    end = time.monotonic() + MOST_SECONDS
    while len(times) < STEPS and (len(times) < 2 or time.monotonic() < end):
        start, called = clock.now(), time.perf_counter()
        step()
        calls.append(time.perf_counter() - called)
        times.append(clock.now() - start)
    peak = measure_peak_bytes(module, optimizer, step, batch)
    return {
        "step_s": undisturbed_s(times),
        "host_s": undisturbed_s(calls),
        "peak_bytes": peak,
        "losses": losses,
    }


def main() -> None:
    """Passes if all ways run, and the losses of ours are those of the model as it is."""
    chosen = arguments()
    device = first_device(chosen.device)
    tensoropt_torch.init()
    found: dict[str, dict[str, Any]] = {}
    passed = True
    for precision in ("float32", "bfloat16 autocast"):
        found[precision] = {}
        for way in (*WAYS, *(ON_GPUS if device.type == "cuda" else ())):
            try:
                row = measured(way, precision, device, chosen.small)
            except Exception as error:
                row = {"error": said_by(error)}
            found[precision][way.__name__] = row
        rows = found[precision]
        passed &= all("error" not in row for row in rows.values())
        tolerance = 1e-3 if precision == "float32" else 2e-2
        if passed:
            expected = rows["eager"]["losses"]
            passed = all(
                abs(a - b) <= tolerance * abs(a)
                for name in OURS
                if name in rows
                for a, b in zip(expected, rows[name]["losses"], strict=True)
            )
    report(passed, precisions=found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
