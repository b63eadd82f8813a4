"""Runs of ``lightning.Trainer`` with and without our strategy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchmetrics.classification import MulticlassAccuracy

from tensoropt_torch import (
    Example,
    ParallelModule,
    PlanningOptions,
    find_frontier,
    find_stages,
    parallelize,
)
from tensoropt_torch.integrations.plan_source import PlanSource
from tests.integrations.models import LENGTH, PADDING, VOCABULARY, Texts, gpt2

BATCH = 16  # of all ranks
STEPS = 10  # of an epoch

Log = list[dict[str, float]]


class Language(lightning.LightningModule):
    """A model of Hugging Face that computes its loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.model = gpt2()
        self.accuracy = MulticlassAccuracy(VOCABULARY, average="micro", ignore_index=PADDING)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        output = self.model(**batch)
        self.accuracy(output.logits[:, :-1].argmax(-1), batch["labels"][:, 1:])
        self.log("val_loss", output.loss, sync_dist=True)
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Parts(lightning.LightningModule):
    """Several modules with parameters, and a loss that each rank computes of its share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.norm = nn.BatchNorm1d(32)
        self.dropout = nn.Dropout(0.0)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        return self.head(self.dropout(hidden.relu()))

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        tokens = batch["input_ids"]
        return nn.functional.cross_entropy(self(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Adversaries(lightning.LightningModule):
    """Two modules that are trained in turns, by optimizers of their own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 6)
        )
        self.discriminator = nn.Sequential(nn.Linear(6, 32), nn.LeakyReLU(), nn.Linear(32, 1))
        self.accuracy = MulticlassAccuracy(2, average="micro")

    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise)

    def training_step(self, batch: dict[str, Tensor]) -> None:
        tokens = batch["input_ids"].float() / VOCABULARY - 0.5
        noise, real = tokens[:, :8], tokens[:, :6]
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        self._step(first, self._judged(self(noise), 1.0))
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        told = self._judged(real, 1.0) + self._judged(self(noise).detach(), 0.0)
        self._step(second, told)
        self.untoggle_optimizer(second)
        self.log("loss", told.detach(), sync_dist=True)

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        tokens = batch["input_ids"].float() / VOCABULARY - 0.5
        self.log("val_loss", self._judged(self(tokens[:, :8]), 1.0), sync_dist=True)

    def _judged(self, rows: Tensor, told: float) -> Tensor:
        scores = self.discriminator(rows)
        return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, told))

    def _step(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, 1.0, "norm")
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.Adam(self.generator.parameters(), lr=1e-2),
            torch.optim.Adam(self.discriminator.parameters(), lr=1e-2),
        )


class Logits(Parts):
    """The same without batch normalisation, which micro-batches would see by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(LENGTH)  # type: ignore[assignment]


class Whole(Logits):
    """Whose forward computes the loss."""

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1, 1).flatten())

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = self(batch["input_ids"])
        return loss


MODULES = {
    "language": Language,
    "whole": Whole,
    "logits": Logits,
    "parts": Parts,
    "adversaries": Adversaries,
}


class Recorder(lightning.Callback):
    """What was logged, by epoch."""

    def __init__(self) -> None:
        self.rows: Log = []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.rows.append({"epoch": trainer.current_epoch, "loss": _float(trainer, "loss")})

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        names = [name for name in trainer.callback_metrics if name.startswith("val_")]
        self.rows.append({"epoch": trainer.current_epoch, **{n: _float(trainer, n) for n in names}})


def _float(trainer: Any, name: str) -> float:
    return float(trainer.callback_metrics[name])


@dataclass
class Job:
    """One run; what is not said is as in all of them."""

    module: str
    folder: str
    ranks: int = 1
    resume_from: str | None = None
    smallest: bool = False  # the plan of least memory
    stages: dict[str, Any] = field(default_factory=dict)  # how it is cut
    max_micro_batches: int = 1
    epochs: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)


class SmallestPlan(PlanSource):
    """The plan of least memory in so many micro-batches at most."""

    def __init__(self, max_micro_batches: int) -> None:
        self._max_micro_batches = max_micro_batches

    def parallelize(self, example: Example, optimizer: str = "adamw") -> ParallelModule:
        frontier = find_frontier(
            example,
            inputs="sharded",
            measure=False,
            max_micro_batches=self._max_micro_batches,
        )
        return parallelize(example, frontier.smallest.plan)


class InStages(PlanSource):
    """A plan in stages that are given."""

    def __init__(self, stages: dict[str, Any]) -> None:
        self._stages = stages

    def parallelize(
        self, example: Example, inputs: Any = "sharded", optimizer: str = "adamw"
    ) -> ParallelModule:
        return parallelize(
            example, find_stages(example, measure=False, inputs=inputs, **self._stages)
        )


class FoundExampleError(Exception):
    """What was to be planned for."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.example = example


class NoPlan(PlanSource):
    """Ends the run where it would plan."""

    def parallelize(self, example: Example, optimizer: str = "adamw") -> ParallelModule:
        raise FoundExampleError(example)


def groups_planned_for(job: Job) -> int:
    """Of batch normalisation."""
    from tensoropt_torch.integrations.lightning import TensorOptStrategy

    strategy = TensorOptStrategy(**job.strategy)
    strategy._source = NoPlan()
    try:
        fit(job, strategy)
    except FoundExampleError as found:
        return found.example.batch_norm_groups
    raise AssertionError("nothing was planned")


def plain_run(job: Job) -> Log:
    """In one process, as it is without plans."""
    return fit(job, "auto")[0]


def our_run(job: Job) -> Log:
    """On this rank."""
    return our_fit(job)[0]


def our_runs(jobs: dict[str, Job]) -> dict[str, Log]:
    return {name: our_run(job) for name, job in jobs.items()}


def our_run_and_state(job: Job) -> tuple[Log, dict[str, Any]]:
    log, module = our_fit(job)
    buffers = {name: float(b) for name, b in module.named_buffers() if b.numel() == 1}
    return log, {"names": list(module.state_dict()), **buffers}


def our_fit(job: Job) -> tuple[Log, lightning.LightningModule]:
    from tensoropt_torch.integrations.lightning import TensorOptStrategy

    strategy = TensorOptStrategy(planning=PlanningOptions(measure=False), **job.strategy)
    if job.smallest:
        strategy._source = SmallestPlan(job.max_micro_batches)
    if job.stages:
        strategy._source = InStages(job.stages)
    return fit(job, strategy)


def fit(job: Job, strategy: Any) -> tuple[Log, lightning.LightningModule]:
    recorder = Recorder()
    saver = ModelCheckpoint(Path(job.folder), filename="{epoch}", save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=job.ranks,
        strategy=strategy,
        max_epochs=job.epochs,
        logger=False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[recorder, saver],
        **job.options,
    )
    module = MODULES[job.module]()
    train, validation = Texts(BATCH * STEPS), Texts(BATCH * 3, seed=2)
    trainer.fit(
        module, loader(train, job), loader(validation, job, False), ckpt_path=job.resume_from
    )
    return recorder.rows, module


def loader(data: Dataset[Any], job: Job, train: bool = True) -> DataLoader[Any]:
    """In one process the order is that which Lightning has on several."""
    sampler = DistributedSampler(data, 1, 0, seed=0) if train and job.ranks == 1 else None
    return DataLoader(data, batch_size=BATCH // job.ranks, sampler=sampler)
