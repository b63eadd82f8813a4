"""Runs of ``lightning.Trainer`` whose callbacks keep averages of weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tensoropt_torch import PlanningOptions
from tests.integrations.lightning_runs import BATCH, STEPS, Job, Log, Parts, Recorder, loader
from tests.integrations.models import Texts


class Child(lightning.LightningModule):
    """The layers of ``Parts``, in a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Parts()

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log_dict(grad_norm(self, 2))

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        tokens = batch["input_ids"]
        return nn.functional.cross_entropy(
            self.model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten()
        )

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


MODULES = {"itself": Parts, "child": Child}
AVERAGES: dict[str, Any] = {
    "swa": lambda: StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=2, annealing_epochs=1),
    "ema": lambda: EMAWeightAveraging(decay=0.9),
}


@dataclass
class Run:
    """What differs between runs."""

    module: str
    average: str
    folder: str
    ranks: int = 1
    resume_from: str | None = None


def plain(run: Run) -> tuple[Log, dict[str, Tensor]]:
    """In one process, as it is without plans."""
    return _fit(run, "auto")


def ours(run: Run) -> tuple[Log, dict[str, Tensor]]:
    """On this rank."""
    from tensoropt_torch.integrations.lightning import TensorOptStrategy

    return _fit(run, TensorOptStrategy(planning=PlanningOptions(measure=False)))


def _fit(run: Run, strategy: Any) -> tuple[Log, dict[str, Tensor]]:
    """What was logged, and the weights at the end."""
    recorder = Recorder()
    saver = ModelCheckpoint(Path(run.folder), filename="{epoch}", save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=run.ranks,
        strategy=strategy,
        max_epochs=3,
        logger=False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[recorder, AVERAGES[run.average](), saver],
    )
    module, job = MODULES[run.module](), Job("", run.folder, run.ranks)
    train, validation = Texts(BATCH * STEPS), Texts(BATCH * 3, seed=2)
    trainer.fit(
        module, loader(train, job), loader(validation, job, False), ckpt_path=run.resume_from
    )
    return recorder.rows, {name: _whole(value) for name, value in module.state_dict().items()}


def norms(run: Run) -> dict[str, list[float]]:
    """Of the gradients of each step, as they are logged; in one process without plans."""
    from tensoropt_torch.integrations.lightning import TensorOptStrategy

    ours: Any = TensorOptStrategy(planning=PlanningOptions(measure=False))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=run.ranks,
        strategy=ours if run.ranks > 1 else "auto",
        max_epochs=1,
        logger=CSVLogger(run.folder, version=""),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    module, job = MODULES[run.module](), Job("", run.folder, run.ranks)
    trainer.fit(module, loader(Texts(BATCH * STEPS), job))
    return {name: [float(value)] for name, value in trainer.callback_metrics.items()}


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
