"""Train a character-level GPT on several processes.

    torchrun --nproc-per-node 2 examples/train_gpt.py

The model in gpt.py is an ordinary module. TensorOpt captures it, measures collectives,
operators and a few strategies, searches the frontier between step time and memory per
device, and runs the strategy that is fastest within the memory limit.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from gpt import GPT, GPTConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from text import CharText, load_text

import tensoropt_torch
from tensoropt_torch.measure.runs.peak_memory import measure_peak_bytes
from tensoropt_torch.report.tables import frontier_table, plan_summary, plan_table
from tensoropt_torch.telling.description import describe
from tensoropt_torch.units import format_bytes, format_seconds

VALIDATED = 6  # random strategies that are run for a moment, to learn what steps take here


def parse_arguments() -> argparse.Namespace:
    """Sizes of the model and of the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="global")
    parser.add_argument("--block-size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--embedding", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--memory-limit", type=float, help="bytes per device")
    parser.add_argument("--details", action="store_true", help="print every operator's config")
    return parser.parse_args()


def print_plan(console: Console, plan: tensoropt_torch.Plan, details: bool) -> None:
    """The frontier, and the strategy picked from it."""
    title = f"Cost frontier on {plan.num_devices} devices ({len(plan.frontier)} points)"
    console.print(frontier_table(plan.frontier, title, chosen=plan.memory_bytes))
    description = describe(plan)
    console.print(f"Chosen: {plan_summary(description)}")
    if details:
        console.print(plan_table(description))


class Trainer:
    """The usual training loop; nothing in it knows how the model is split."""

    def __init__(
        self,
        model: torch.nn.Module,
        text: CharText,
        options: argparse.Namespace,
        device: torch.device,
    ) -> None:
        self.device = device
        self.model = model
        self.text = text
        self.options = options
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
        self.seconds: list[float] = []

    def step(self, index: int) -> float:
        """One step on the global batch; returns the loss before it."""
        batch = self.text.batch(index, self.options.batch_size, self.options.block_size)
        tokens, targets = (tensor.to(self.device) for tensor in batch)
        start = time.perf_counter()
        loss = self.model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.perf_counter() - start)
        return float(loss.detach())


def train(trainer: Trainer, console: Console) -> tuple[float, float]:
    """All steps under a progress bar; returns the first and the last loss."""
    columns = (TextColumn("loss {task.fields[loss]:.3f}"), BarColumn())
    losses = [trainer.step(0)]
    with Progress(
        *columns, MofNCompleteColumn(), TimeRemainingColumn(), console=console
    ) as progress:
        task = progress.add_task("train", total=trainer.options.steps, loss=losses[0], completed=1)
        for index in range(1, trainer.options.steps):
            losses.append(trainer.step(index))
            progress.update(task, advance=1, loss=losses[-1])
    return losses[0], statistics.fmean(losses[-10:])


def main() -> None:
    """Plan, train, and compare what was predicted with what is measured."""
    options = parse_arguments()
    device = tensoropt_torch.init()
    console = Console(quiet=dist.get_rank() != 0)
    text = load_text()
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(
            vocab_size=text.vocab_size,
            block_size=options.block_size,
            n_layer=options.layers,
            n_head=options.heads,
            n_embd=options.embedding,
        )
    )
    batch = text.batch(0, options.batch_size, options.block_size)
    plan = tensoropt_torch.find_strategy(
        model, batch, memory_limit=options.memory_limit, validate=VALIDATED
    )
    print_plan(console, plan, options.details)
    parallel = tensoropt_torch.parallelize(model, plan)
    trainer = Trainer(parallel, text, options, device)
    first, last = train(trainer, console)
    measured = statistics.median(trainer.seconds[5:] or trainer.seconds)
    peak = measure_peak_bytes(parallel, trainer.optimizer, lambda: trainer.step(options.steps))
    console.print(f"loss      {first:.4f} at the start, {last:.4f} at the end")
    console.print(
        f"step time {format_seconds(plan.time_s)} predicted, {format_seconds(measured)} measured"
    )
    console.print(
        f"memory    {format_bytes(plan.memory_bytes)} predicted, {format_bytes(peak)} measured "
        "at peak on rank 0"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
