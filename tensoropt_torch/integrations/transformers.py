"""``transformers.Trainer`` for a model that runs under a plan (docs/huggingface.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer import SCHEDULER_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from tensoropt_torch import api
from tensoropt_torch.checkpoint import save_pretrained
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.integrations import states
from tensoropt_torch.integrations.early_optimizers import use_parameters_of
from tensoropt_torch.integrations.first_step import call_of_all_ranks
from tensoropt_torch.integrations.joint_batches import (
    JointBatches,
    cpu_tensors_are_served,
    lengths_seen,
    may_differ,
)
from tensoropt_torch.integrations.last_batch import (
    cut,
    few_rows_expected,
    filled,
    rows_in,
    rows_of_rank,
)
from tensoropt_torch.integrations.loaders import recording
from tensoropt_torch.integrations.plan_source import (
    MAX_VARIANTS,
    AnyPlan,
    PlanSource,
    check_inputs,
)
from tensoropt_torch.integrations.row_dims import Sampled, first_batch
from tensoropt_torch.integrations.shares import average_gradients_of_shares, first_of
from tensoropt_torch.integrations.training_arguments import (
    OPTIMIZERS,
    check_optimizer,
    check_processes,
    check_training_arguments,
    take_checkpointing,
)
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.runtime.agreement import gather, on_all_ranks
from tensoropt_torch.runtime.lost_ranks import waiting
from tensoropt_torch.tasks import Example, PlanningOptions
from tensoropt_torch.tasks.options import Inputs
from tensoropt_torch.values import WeightSource


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` whose model runs under a plan.

    Takes what ``transformers.Trainer`` takes. Before the first step the model is planned, with
    the first batch of the training data times the number of processes for the global batch,
    and replaced by a ``ParallelModule``. Each process gets its share of the data, as under
    data parallelism; losses, gradients and metrics are those of one process with the
    global batch. Works on the processes of ``torchrun``, or on this one alone.

    Args:
        model: a model; or a ``ParallelModule`` that was planned with ``inputs="sharded"``.
        plan: a plan, or the file of one, in place of planning.
        planning: how to plan; ``inputs`` are sharded in any case.
        inputs: where inputs of the model have the rows of the batch, as for
            ``PlanningOptions``; by default it is found.
        memory_limit: bytes per device, as for ``find_strategy``.
        weights: what gives values to a model on the meta device.
        batch_norm_groups: into how many groups of rows batch normalisation in training splits
            the batch of all processes, as for ``Example``; as many as processes for what
            ``transformers.Trainer`` computes.
        max_variants: how many different shapes batches may have, times modes.
        check_capture: compare the captured graph with the model at the first training step, as
            for ``parallelize``.

    Raises:
        TensorOptError: on every rank; something in ``args`` does not go with a plan.
    """

    model: Any

    def __init__(
        self,
        model: nn.Module | None = None,
        args: transformers.TrainingArguments | None = None,
        *others: Any,
        plan: AnyPlan | str | Path | None = None,
        planning: PlanningOptions | None = None,
        inputs: Inputs | None = None,
        memory_limit: float | None = None,
        weights: WeightSource | None = None,
        batch_norm_groups: int = 1,
        max_variants: int = MAX_VARIANTS,
        check_capture: bool = True,
        **kwargs: Any,
    ) -> None:
        if model is None:
            raise TensorOptError("Trainer needs a model=; model_init= would make many")
        self._parallel: ParallelModule | None = None
        self._joint: JointBatches | None = None
        self._loss_is_share_of_sum = False
        self._planned_inputs: Inputs = "sharded"
        self._source = PlanSource(
            plan,
            planning,
            memory_limit,
            weights,
            inputs=inputs,
            max_variants=max_variants,
            check_capture=check_capture,
        )
        self._batch_norm_groups = batch_norm_groups
        parallel = model if isinstance(model, ParallelModule) else None
        super().__init__(model if parallel is None else parallel.original, args, *others, **kwargs)
        check_training_arguments(self.args)
        self._source = replace(self._source, recompute=take_checkpointing(self.args))
        if parallel is not None:
            self._use(parallel)

    # From model to parallel module

    def example(self, batches: Iterable[Any] | None = None) -> Example:
        """What is planned: the model with the arguments of a training step, for the batch of
        all ranks. Collective.

        Args:
            batches: of this rank; by default the training data, or else those of evaluation.
        """
        return self._first_step(self._source, batches)[0]

    @property
    def planned_inputs(self) -> Inputs:
        """Where inputs of the ``example`` that was made last have the rows of the batch, as
        functions that plan take it."""
        return self._planned_inputs

    def _first_step(
        self, source: PlanSource, batches: Iterable[Any] | None
    ) -> tuple[Example, Inputs]:
        """The example, and where its inputs have the rows of the batch."""
        api.init()  # a group of this process alone, where there is none
        check_processes(self.args)
        if batches is None:
            trains = self.train_dataset is not None
            batches = self.get_train_dataloader() if trains else self.get_eval_dataloader()
        model: nn.Module = self.model
        with recording([batches]):
            drawn = on_all_ranks(lambda: first_of(batches))
        drawn = self._joined_first(drawn, getattr(batches, "dataset", None))
        items = self._get_num_items_in_batch([first_batch(drawn)], self.args.device)
        model.train()

        def step(batch: Any) -> None:
            self.compute_loss(model, self._prepare_inputs(batch), num_items_in_batch=items)

        call, inputs = call_of_all_ranks(model, step, drawn, source)
        self._planned_inputs = inputs
        own_loss = type(self).compute_loss is not Trainer.compute_loss
        example = Example(
            model,
            call.args,
            call.kwargs,
            outputs="all" if own_loss else "loss",
            batch_norm_groups=self._batch_norm_groups,
        )
        return example, inputs

    def _joined_first(self, drawn: Any, dataset: Any) -> Any:
        """The first batch, as long as those of all ranks; later ones will be."""
        if not isinstance(drawn, Sampled) or self.args.world_size == 1:
            return drawn
        seen = gather(on_all_ranks(lambda: lengths_seen(drawn, dataset)))
        if any(shapes != seen[0][:1] for shapes in seen):
            self._joint = JointBatches(drawn.collate)
            return self._joint.first(drawn)
        if cpu_tensors_are_served() and all(gather(may_differ(drawn))):
            self._joint = JointBatches(drawn.collate)
        return drawn

    def parallelize(
        self, plan: AnyPlan | None = None, batches: Iterable[Any] | None = None
    ) -> ParallelModule:
        """Replaces the model by one that runs under this plan, or under one that is found.
        ``train`` and ``evaluate`` do that where nobody has before. Collective."""
        source = self._source if plan is None else replace(self._source, plan=plan)
        example, inputs = self._first_step(source, batches)
        optimizer = OPTIMIZERS.get(self.args.optim, "adamw")
        with self.accelerator.autocast():  # as around every step
            parallel = source.parallelize(example, inputs, optimizer)
        self._use(parallel)
        return parallel

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """As of ``transformers.Trainer``. Collective."""
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None:
            check_optimizer(self.args)
        if self._parallel is None:
            self.parallelize()
        return super().train(*args, **kwargs)

    def evaluation_loop(
        self, dataloader: DataLoader[Any], *args: Any, **kwargs: Any
    ) -> EvalLoopOutput:
        """As of ``transformers.Trainer``. Collective."""
        if self._parallel is None:
            self.parallelize(batches=None if self.train_dataset is not None else dataloader)
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def _use(self, parallel: ParallelModule) -> None:
        check_inputs(parallel.plan)
        self._set_signature_columns_if_needed()  # from the forward of the model itself
        if self.optimizer is not None:
            use_parameters_of(parallel, self.model, self.optimizer)
        average_gradients_of_shares(parallel)
        self._parallel = parallel
        self.model = self.model_wrapped = self.callback_handler.model = parallel
        # Then Trainer does not wrap the model, and all ranks take part in saving.
        self.is_distributed_loading_by_transformers = True

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Its parts will be there, and no process has to hold the whole model."""

    # Batches

    def get_train_dataloader(self) -> DataLoader[Any]:
        """As of ``transformers.Trainer``."""
        return self._keeping(super().get_train_dataloader())

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """As of ``transformers.Trainer``."""
        return self._keeping(super().get_eval_dataloader(*args, **kwargs))

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """As of ``transformers.Trainer``."""
        return self._keeping(super().get_test_dataloader(*args, **kwargs))

    def _keeping(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        if self._joint is not None:
            self._joint.keep(loader)
        return loader

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        whole = inputs if self._joint is None else self._joint.of_all(inputs)
        prepared: dict[str, Any] = super()._prepare_inputs(whole)
        return prepared

    # Steps

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """As of ``transformers.Trainer``."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        scaled_up = self._loss_is_scaled_up(num_items_in_batch)
        self._loss_is_share_of_sum = scaled_up and not self._loss_is_of_model
        if self._loss_is_of_model and scaled_up:
            loss = loss / self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Any, Any, Any]:
        """As of ``transformers.Trainer``; the last batch is that of one process."""
        whole = inputs if self._joint is None else self._joint.of_all(inputs)
        dim_of = cast(ParallelModule, self._parallel).plan.shares.rows_dim
        have = rows_in(whole, dim_of)
        rows = rows_of_rank(self.accelerator, have) if have else None
        if rows is None:
            step = super().prediction_step(model, whole, prediction_loss_only, ignore_keys)
            return cast("tuple[Any, Any, Any]", step)
        batch, self._loss_is_share_of_sum = cut(whole, dim_of, have, rows), False
        with few_rows_expected():
            loss, *others = super().prediction_step(model, batch, prediction_loss_only, ignore_keys)
        logits, labels = filled(others, rows, have)
        if self._loss_is_share_of_sum:  # which is not weighed by rows
            with waiting():
                loss = self.accelerator.reduce(loss, "mean")
        return loss, logits, labels

    @property
    def _loss_is_of_model(self) -> bool:
        """Then it is that of the global batch, else each rank computes one of its share."""
        return self.compute_loss_func is None and self.label_smoother is None

    def _loss_is_scaled_up(self, num_items_in_batch: object) -> bool:
        """Whether ``transformers`` multiplies the loss by the number of processes, so that the
        mean over them is the sum."""
        takes_counts = self.model_accepts_loss_kwargs or self.compute_loss_func
        counts = takes_counts and num_items_in_batch is not None
        return bool(counts and self.args.average_tokens_across_devices)

    # Checkpoints

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        if self._parallel is None:
            super()._save(output_dir, state_dict)
            return
        folder = output_dir or str(self.args.output_dir)
        save_pretrained(self._parallel, folder)
        if not self.args.should_save:
            return
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        torch.save(self.args, os.path.join(folder, TRAINING_ARGS_NAME))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        assert self._parallel is not None and self.lr_scheduler is not None
        states.save_states(output_dir, self._parallel, self._own_optimizer)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        if not self._load_adapters(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        if not self._load_adapters(self.state.best_model_checkpoint):
            super()._load_best_model()

    def _load_adapters(self, checkpoint: str) -> bool:
        if not on_all_ranks(lambda: states.has_adapters(checkpoint)):
            return False
        assert self._parallel is not None
        on_all_ranks(lambda: states.check_has_states(checkpoint))
        states.load_adapters(checkpoint, self._parallel)
        return True

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        assert self._parallel is not None and self.lr_scheduler is not None
        on_all_ranks(lambda: states.check_has_states(checkpoint))
        states.load_optimizer(checkpoint, self._parallel, self._own_optimizer)
        scheduler = torch.load(os.path.join(checkpoint, SCHEDULER_NAME), weights_only=True)
        self.lr_scheduler.load_state_dict(scheduler)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if checkpoint is not None:
            assert self._parallel is not None
            states.load_random(checkpoint, self._parallel)

    @property
    def _own_optimizer(self) -> torch.optim.Optimizer:
        """Without Accelerate's wrapper."""
        return cast(torch.optim.Optimizer, getattr(self.optimizer, "optimizer", self.optimizer))
