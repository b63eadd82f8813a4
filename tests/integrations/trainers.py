"""Runs of ``transformers.Trainer`` and of ours."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import tensoropt_torch
from tensoropt_torch import Plan, PlanningOptions
from tests.integrations.models import MODELS, PADDING, accuracy

STEPS = 30
BATCH = 16  # of all ranks

Log = list[dict[str, float]]


@dataclass
class Job:
    """One run; what is not said is as in all of them."""

    model: str
    folder: str = ""
    ranks: int = 1
    resume_from: str | None = None
    smallest: bool = False  # the plan of least memory
    stages: dict[str, Any] = field(default_factory=dict)  # how it is cut
    kind: str = ""  # what the user brings along
    arguments: dict[str, Any] = field(default_factory=dict)
    planning: dict[str, Any] = field(default_factory=dict)

    def on(self, ranks: int, folder: Path) -> Job:
        return replace(self, ranks=ranks, folder=str(folder))


def plain_run(job: Job) -> Log:
    """In one process, as it is without plans."""
    return run(_class(transformers.Trainer, job.kind)(**parts(job)), job)


def our_run(job: Job) -> Log:
    """On this rank."""
    from tensoropt_torch.integrations.transformers import Trainer

    planning = PlanningOptions(measure=False, **job.planning)
    trainer = _class(Trainer, job.kind)(**parts(job), planning=planning)
    if job.smallest:
        trainer.parallelize(smallest_plan(trainer.example(), **job.planning))
    if job.stages:
        example = trainer.example()
        with trainer.accelerator.autocast():
            plan = tensoropt_torch.find_stages(
                example, measure=False, inputs=trainer.planned_inputs, **job.stages, **job.planning
            )
        trainer.parallelize(plan)
    return run(trainer, job)


def our_runs(jobs: dict[str, Job]) -> dict[str, Log]:
    return {name: our_run(job) for name, job in jobs.items()}


def run(trainer: transformers.Trainer, job: Job) -> Log:
    if job.kind == "Evaluation":
        return evaluate(trainer, job)
    trainer.train(resume_from_checkpoint=job.resume_from)
    if trainer.args.load_best_model_at_end:
        trainer.evaluate()
    log: Log = trainer.state.log_history
    return log


def evaluate(trainer: transformers.Trainer, job: Job) -> Log:
    """Of a trainer that has nothing to train on, also of data whose last batch is not full."""
    predicted = trainer.predict(MODELS[job.model][1](2 * BATCH + 5, seed=3))
    row = {
        "step": 1,
        "eval_loss": trainer.evaluate()["eval_loss"],
        "eval_accuracy": predicted.metrics["test_accuracy"],
        "loss_of_all": predicted.metrics["test_loss"],
        "predictions": float(predicted.predictions.std()),
        "count": len(predicted.predictions),
    }
    return [row]


def names_with_decay(job: Job) -> list[str]:
    """Of the parameters, those of our trainer."""
    from tensoropt_torch.integrations.transformers import Trainer

    trainer = Trainer(**parts(job), planning=PlanningOptions(measure=False))
    names: list[str] = trainer.get_decay_parameter_names(trainer.parallelize())
    return names


def groups_planned_for(job: Job) -> int:
    """Of batch normalisation."""
    from tensoropt_torch.integrations.transformers import Trainer

    return Trainer(**parts(job), batch_norm_groups=2).example().batch_norm_groups


def smallest_plan(example: tensoropt_torch.Example, **planning: Any) -> Plan:
    frontier = tensoropt_torch.find_frontier(example, inputs="sharded", measure=False, **planning)
    return frontier.smallest.plan


def parts(job: Job) -> dict[str, Any]:
    make_model, make_data = MODELS[job.model]
    given = {
        "model": make_model(),
        "args": arguments(job),
        "train_dataset": make_data(BATCH * 20),
        "eval_dataset": make_data(BATCH * 3, seed=2),
        "compute_metrics": accuracy,
    }
    if job.kind == "OwnOptimizer":
        given["optimizers"] = (torch.optim.SGD(given["model"].parameters(), lr=0.1), None)
    if job.kind == "Evaluation":
        given["train_dataset"] = None
    if job.kind == "OwnLossFunction":
        given["compute_loss_func"] = summed_loss
    return given


def arguments(job: Job) -> transformers.TrainingArguments:
    given = {
        "max_steps": STEPS,
        "learning_rate": 3e-3,
        "weight_decay": 0.1,
        "gradient_accumulation_steps": 2,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 10,
        "save_strategy": "no",
        **job.arguments,
    }
    return transformers.TrainingArguments(
        output_dir=job.folder,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=BATCH // job.ranks,
        per_device_eval_batch_size=BATCH // job.ranks,
        **given,
    )


def summed_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A ``compute_loss_func``: of the share that a rank has."""
    logits, targets = outputs["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    summed = nn.functional.cross_entropy(logits, targets, reduction="sum", ignore_index=PADDING)
    return summed / (
        (targets != PADDING).sum() if num_items_in_batch is None else num_items_in_batch
    )


def _class(base: Any, kind: str) -> Any:
    class OwnLoss(base):  # type: ignore[misc]
        """With a loss that it computes itself, besides that of the model."""

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any
        ) -> Any:
            outputs = model(**inputs)
            logits = outputs.logits
            smoothed = nn.functional.cross_entropy(logits, inputs["labels"], label_smoothing=0.5)
            loss = outputs.loss + 3 * smoothed
            return (loss, outputs) if return_outputs else loss

    return OwnLoss if kind == "OwnLoss" else base
