"""A strategy of Lightning for modules that run under a plan (docs/lightning.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from tensoropt_torch.checkpoint import RandomState, full_optimizer_state_dict
from tensoropt_torch.checkpoint.named_states import named_optimizer_state
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.integrations.first_step import call_of_all_ranks
from tensoropt_torch.integrations.lightning_averages import (
    share_averages,
    tell_averages,
    with_whole_tensors,
)
from tensoropt_torch.integrations.lightning_modules import (
    names_of_parts,
    parallel_in,
    put_in_place,
)
from tensoropt_torch.integrations.lightning_stages import (
    are_stages,
    load_checkpoint,
    move_outside,
    whole_state,
)
from tensoropt_torch.integrations.lightning_trials import tried_out
from tensoropt_torch.integrations.loaders import recording
from tensoropt_torch.integrations.plan_source import (
    MAX_VARIANTS,
    AnyPlan,
    PlanSource,
    check_inputs,
    sources_of_parts,
)
from tensoropt_torch.integrations.shares import average_gradients_of_shares, first_of
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.tasks import Example, PlanningOptions
from tensoropt_torch.tasks.options import Inputs
from tensoropt_torch.values import WeightSource

RANDOM = "tensoropt_random_state"  # in a checkpoint
_WRITTEN_BY_PARTS = ("state_dict", "optimizer_states")  # of one that is a folder

_STEPS = {
    TrainerFn.FITTING: ("fit_loop", "training_step"),
    TrainerFn.VALIDATING: ("validate_loop", "validation_step"),
    TrainerFn.TESTING: ("test_loop", "test_step"),
    TrainerFn.PREDICTING: ("predict_loop", "predict_step"),
}


class TensorOptStrategy(ModelParallelStrategy):  # type: ignore[misc]
    """Runs a module of a ``LightningModule`` under a plan, or several, each under its own.

    Before the first step the module is planned, with the first batch of the
    data times the number of processes for the global batch, and replaced by a
    ``ParallelModule``. Each process gets its share of the data, as with ``"ddp"``, and the
    mean of what the processes return from ``training_step`` is trained on.

    Args:
        module: the name of the module, e.g. ``"model"`` for ``self.model``; by default the
            only one that has parameters, or else the ``LightningModule`` itself with its
            ``forward``, which ``training_step`` then has to call as ``self(...)``; with manual
            optimization all children that have parameters. Or the names of several.
        plan: a plan, or the file of one, in place of planning; of several modules by name.
        planning: how to plan; ``inputs`` are sharded in any case.
        inputs: where inputs of the module have the rows of the batch, as for
            ``PlanningOptions``; by default it is found. Of several modules by name.
        memory_limit: bytes per device, as for ``find_strategy``; for each of several modules.
        weights: what gives values to a module on the meta device, where it is the only one.
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
        module: str | Sequence[str] | None = None,
        *,
        plan: AnyPlan | str | Path | Mapping[str, AnyPlan | str | Path] | None = None,
        planning: PlanningOptions | None = None,
        inputs: Inputs | Mapping[str, Inputs] | None = None,
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
            planning=planning,
            memory_limit=memory_limit,
            weights=weights,
            max_variants=max_variants,
            check_capture=check_capture,
        )
        self._plan, self._inputs = plan, inputs
        self._batch_norm_groups = batch_norm_groups
        self._parallel: dict[str, ParallelModule] = {}

    # From module to parallel module

    @property
    def parallel_module(self) -> ParallelModule:
        """What runs under the plan, from the first step on.

        Raises:
            TensorOptError: before.
        """
        if len(self.parallel_modules) != 1:
            raise TensorOptError(
                f"{', '.join(self._parallel)} run under plans of their own; take one of them from "
                "parallel_modules"
            )
        (parallel,) = self._parallel.values()
        return parallel

    @property
    def parallel_modules(self) -> Mapping[str, ParallelModule]:
        """What runs under plans, by names, from the first step on.

        Raises:
            TensorOptError: before.
        """
        if not self._parallel:
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
        share_averages(trainer.callbacks, self.lightning_module)
        self.model_to_device()  # what is outside of the parallel module, such as metrics
        self.barrier()
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        if trainer.state.fn == TrainerFn.FITTING:
            _optimizers_to_device(self.optimizers, self.root_device)

    def model_to_device(self) -> None:
        if not are_stages(self._parallel):
            super().model_to_device()
            return
        assert self.model is not None
        move_outside(self.model, self.root_device)

    def _made_parallel(
        self, trainer: LightningTrainer, module: LightningModule
    ) -> dict[str, ParallelModule]:
        names = on_all_ranks(lambda: names_of_parts(module, self._module))
        sources = on_all_ranks(
            lambda: sources_of_parts(self._source, names, self._plan, self._inputs)
        )
        there = {name: parallel_in(module, name) for name in names}
        missing = [name for name in names if there[name] is None]
        if len(missing) > 1:
            self.model_to_device()  # the step runs all but the last that it calls
        # All are seen before one of them is in place.
        examples = {n: self._example(trainer, module, n, sources[n]) for n in missing}
        made = {name: parallel for name, parallel in there.items() if parallel is not None}
        for name, (example, inputs) in examples.items():
            with self.precision_plugin.train_step_context():  # as around every step
                made[name] = sources[name].parallelize(example, inputs)
            put_in_place(module, name, made[name])
        for parallel in made.values():
            check_inputs(parallel.plan)
            average_gradients_of_shares(parallel)
        return made

    def _example(
        self, trainer: LightningTrainer, module: LightningModule, name: str, source: PlanSource
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
            with self.precision_plugin.train_step_context():
                run(*((batch, 0) if indexed else (batch,)))

        with tried_out(module):
            call, inputs = call_of_all_ranks(part, step, drawn, source)
        groups = self._batch_norm_groups
        return Example(part, call.args, call.kwargs, batch_norm_groups=groups), inputs

    # Steps

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        with ExitStack() as stack:
            for parallel in self.parallel_modules.values():
                stack.enter_context(parallel.no_sync())
            yield

    # Checkpoints

    def lightning_module_state_dict(self) -> dict[str, Any]:
        if self._save_distributed_checkpoint or not are_stages(self.parallel_modules):
            return cast("dict[str, Any]", super().lightning_module_state_dict())
        assert self.lightning_module is not None
        return whole_state(self.lightning_module, self.parallel_modules)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        if not are_stages(self.parallel_modules):
            return cast("dict[str, Any]", super().optimizer_state(optimizer))
        assert self.model is not None
        own = getattr(optimizer, "_optimizer", optimizer)  # without Lightning's wrapper
        if self._save_distributed_checkpoint:
            return named_optimizer_state(self.model, own)
        return full_optimizer_state_dict(own)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        checkpoint[RANDOM] = {
            name: RandomState(parallel).state_dict()
            for name, parallel in self.parallel_modules.items()
        }
        parts = _WRITTEN_BY_PARTS if self._save_distributed_checkpoint else ()
        whole = with_whole_tensors({k: v for k, v in checkpoint.items() if k not in parts})
        super().save_checkpoint({**checkpoint, **whole}, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        assert self.lightning_module is not None
        checkpoint: dict[str, Any]
        if are_stages(self.parallel_modules):
            checkpoint = load_checkpoint(
                Path(self.broadcast(checkpoint_path)),
                self.lightning_module,
                self.parallel_modules,
                self.optimizers,
                strict=self.lightning_module.strict_loading,
                weights_only=weights_only,
            )
        else:
            checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        tell_averages(checkpoint, self.lightning_module)
        states = checkpoint.pop(RANDOM, {})
        for name, parallel in self.parallel_modules.items():
            if name in states:
                RandomState(parallel).load_state_dict(states[name])
        return checkpoint


def _drawn(loaders: Any, fitting: bool) -> Any:
    """The first batch, with the samples that it is made of."""
    if not isinstance(loaders, CombinedLoader):
        loaders = CombinedLoader(loaders, "max_size_cycle" if fitting else "sequential")
    with recording(loaders.flattened):
        batch, _, _ = on_all_ranks(lambda: first_of(loaders))
    return batch
