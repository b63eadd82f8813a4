"""A strategy of Lightning for modules that run under a plan (docs/lightning.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from tensoropt_torch.checkpoint import RandomState
from tensoropt_torch.emit import ParallelModule, WeightSource
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.integrations.first_step import call_of_all_ranks
from tensoropt_torch.integrations.lightning_modules import (
    name_of_part,
    parallel_in,
    put_in_place,
    without_logging,
)
from tensoropt_torch.integrations.loaders import recording
from tensoropt_torch.integrations.plan_source import MAX_VARIANTS, PlanSource, check_inputs
from tensoropt_torch.integrations.shares import average_gradients_of_shares, first_of
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.tasks import Example, PlanningOptions
from tensoropt_torch.tasks.options import Inputs

RANDOM = "tensoropt_random_state"  # in a checkpoint

_STEPS = {
    TrainerFn.FITTING: ("fit_loop", "training_step"),
    TrainerFn.VALIDATING: ("validate_loop", "validation_step"),
    TrainerFn.TESTING: ("test_loop", "test_step"),
    TrainerFn.PREDICTING: ("predict_loop", "predict_step"),
}


class TensorOptStrategy(ModelParallelStrategy):  # type: ignore[misc]
    """Runs a module of a ``LightningModule`` under a plan.

    Before the first step the module is planned, with the first batch of the
    data times the number of processes for the global batch, and replaced by a
    ``ParallelModule``. Each process gets its share of the data, as with ``"ddp"``, and the
    mean of what the processes return from ``training_step`` is trained on.

    Args:
        module: the name of the module, e.g. ``"model"`` for ``self.model``; by default the
            only one that has parameters, or else the ``LightningModule`` itself with its
            ``forward``, which ``training_step`` then has to call as ``self(...)``.
        plan: a plan, or the file of one, in place of planning.
        planning: how to plan; ``inputs`` are sharded in any case.
        inputs: where inputs of the module have the rows of the batch, as for
            ``PlanningOptions``; by default it is found.
        memory_limit: bytes per device, as for ``find_strategy``.
        weights: what gives values to a module on the meta device.
        batch_norm_groups: into how many groups of rows batch normalisation in training splits
            the batch of all processes, as for ``Example``; as many as processes for what
            ``"ddp"`` computes.
        max_variants: how many different shapes batches may have, times modes.
        check_capture: compare the captured graph with the module at the first training step, as
            for ``parallelize``.
        save_distributed_checkpoint: each process writes its parts into a folder; otherwise
            rank 0 writes all into one file.
        process_group_backend, timeout: as for ``ModelParallelStrategy``.
    """

    def __init__(
        self,
        module: str | None = None,
        *,
        plan: Plan | str | Path | None = None,
        planning: PlanningOptions | None = None,
        inputs: Inputs | None = None,
        memory_limit: float | None = None,
        weights: WeightSource | None = None,
        batch_norm_groups: int = 1,
        max_variants: int = MAX_VARIANTS,
        check_capture: bool = True,
        save_distributed_checkpoint: bool = True,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        super().__init__(
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        self._module = module
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
        self._parallel: ParallelModule | None = None

    # From module to parallel module

    @property
    def parallel_module(self) -> ParallelModule:
        """What runs under the plan, from the first step on.

        Raises:
            TensorOptError: before.
        """
        if self._parallel is None:
            raise TensorOptError("nothing runs under a plan yet; call fit first")
        return self._parallel

    def setup_environment(self) -> None:
        # Every process has a share of the data.
        self._data_parallel_size = self.num_nodes * self.num_processes
        self._tensor_parallel_size = 1
        super().setup_environment()

    def setup(self, trainer: LightningTrainer) -> None:
        assert self.accelerator is not None and self.lightning_module is not None
        self.accelerator.setup(trainer)
        self.model = self.precision_plugin.convert_module(self.lightning_module)
        self._parallel = self._made_parallel(trainer, self.lightning_module)
        self.model_to_device()  # what is outside of the parallel module, such as metrics
        self.barrier()
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        if trainer.state.fn == TrainerFn.FITTING:
            _optimizers_to_device(self.optimizers, self.root_device)

    def _made_parallel(self, trainer: LightningTrainer, module: LightningModule) -> ParallelModule:
        name = on_all_ranks(lambda: name_of_part(module, self._module))
        parallel = parallel_in(module, name)
        if parallel is None:
            example, inputs = self._example(trainer, module, name)
            with self.precision_plugin.train_step_context():  # as around every step
                parallel = self._source.parallelize(example, inputs)
            put_in_place(module, name, parallel)
        check_inputs(parallel.plan)
        average_gradients_of_shares(parallel)
        return parallel

    def _example(
        self, trainer: LightningTrainer, module: LightningModule, name: str
    ) -> tuple[Example, Inputs]:
        """The part of this name with its arguments in the first step, for the batch of all
        ranks, and where these have its rows."""
        loop, method = _STEPS[trainer.state.fn]
        loaders = getattr(trainer, loop)._data_source.dataloader()
        drawn = _drawn(loaders, fitting=trainer.state.fn == TrainerFn.FITTING)
        part, run = module.get_submodule(name), getattr(module, method)
        indexed = is_param_in_hook_signature(run, "batch_idx", min_args=2)

        def step(batch: Any) -> None:
            batch = self.precision_plugin.convert_input(batch)
            batch = self.batch_to_device(module._on_before_batch_transfer(batch))
            run(*((batch, 0) if indexed else (batch,)))

        with without_logging(module):
            call, inputs = call_of_all_ranks(part, step, drawn, self._source)
        groups = self._batch_norm_groups
        return Example(part, call.args, call.kwargs, batch_norm_groups=groups), inputs

    # Steps

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        with self.parallel_module.no_sync():
            yield

    # Checkpoints

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        checkpoint[RANDOM] = RandomState(self.parallel_module).state_dict()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        states = checkpoint.pop(RANDOM, None)
        if states is not None:
            RandomState(self.parallel_module).load_state_dict(states)
        return checkpoint


def _drawn(loaders: Any, fitting: bool) -> Any:
    """The first batch, with the samples that it is made of."""
    if not isinstance(loaders, CombinedLoader):
        loaders = CombinedLoader(loaders, "max_size_cycle" if fitting else "sequential")
    with recording(loaders.flattened):
        batch, _, _ = on_all_ranks(lambda: first_of(loaders))
    return batch
