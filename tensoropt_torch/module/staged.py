"""``parallelize`` for plans in stages: each rank gets the module of its stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from tensoropt_torch.calls.attribute_watch import AttributeWatch
from tensoropt_torch.calls.capture_check import CaptureCheck, ComparedBefore
from tensoropt_torch.collector import without_collections
from tensoropt_torch.emit.compiler import CUDA_GRAPHS, Compile, CompileOptions, compiler_of
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, as_module
from tensoropt_torch.frontend.call_context import autocast_off, current_autocast
from tensoropt_torch.frontend.python_calls import check_hooks, run_by
from tensoropt_torch.module.attempts import Attempt
from tensoropt_torch.module.parallel_module import ParallelModule, programs_of
from tensoropt_torch.module.parallelize import seed_generator
from tensoropt_torch.module.programs import ModulePrograms
from tensoropt_torch.module.stage_calls import StageCall, StageCalls, StageVariantOptions
from tensoropt_torch.module.stage_maker import StageMaker
from tensoropt_torch.module.stage_part import StagePart
from tensoropt_torch.module.stage_step import StageStep
from tensoropt_torch.module.step_hooks import watch_optimizers
from tensoropt_torch.module.storage import ModuleStorage
from tensoropt_torch.parameters.kept_gradients import is_kept
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.runtime.agreement import (
    DifferentCallsError,
    agree_on_model,
    agree_or_raise,
    confirming,
    on_all_ranks,
)
from tensoropt_torch.runtime.grad_scaler import agree_on_infinite_gradients
from tensoropt_torch.runtime.stage_groups import StageGroups
from tensoropt_torch.steps.stage_norms import watch_norms_of_stages
from tensoropt_torch.values.weights import WeightSource


@without_collections()
def parallelize_stages(
    model: nn.Module | torch.export.ExportedProgram,
    captured: CapturedModel,
    plan: StagedPlan,
    device: torch.device,
    weights: WeightSource | None = None,
    *,
    options: StageVariantOptions,
    check_capture: bool = True,
    compared: ComparedBefore | None = None,
    compile: Compile = False,
    own_groups: bool = False,
) -> StagedModule:
    """The module that runs this rank's stage of ``plan``; with ``own_groups`` its process groups
    are of nobody else, so that ranks can leave them. Collective.

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of processes, the
            model, or the other ranks.
    """
    model = as_module(model)
    on_all_ranks(lambda: _check_world(plan))
    agree_on_model(captured)
    agree_or_raise("plan", plan.hash, "plan once on rank 0: find_stages gives all ranks the same")
    on_all_ranks(lambda: plan.check_model(captured))
    on_all_ranks(lambda: check_hooks(model, captured.hooks))
    compiler = on_all_ranks(lambda: _compiler_of(compile, device))
    maker = StageMaker(model, captured, plan, device, compiler, own_groups=own_groups)
    maker.load(weights or WeightSource())
    base = maker.base()
    storage = ModuleStorage(maker.root)
    attributes = AttributeWatch(maker.root, maker.structure.module, model, captured.form.loss_fn)
    check = CaptureCheck.make(model, check_capture, compared)
    calls = StageCalls(maker, plan, base, device, attributes, check, options)
    programs = StagePrograms(plan, base, storage, calls, frozenset(maker.foreign))
    module = StagedModule(plan, storage, programs)
    watch_optimizers(model, module)
    agree_on_infinite_gradients()
    watch_norms_of_stages()
    return module


def _compiler_of(compile: Compile, device: torch.device) -> CompileOptions | None:
    compiler = compiler_of(compile)
    if compiler is None:
        return None
    compiler.check_device(device)
    if compiler.patches.get(CUDA_GRAPHS) or compiler.collectives != "plan":
        raise TensorOptError(
            f"compile={compile!r} is not for plans in stages, whose micro-batches wait for each "
            "other's memory, and whose collectives stay as they are; give compile=True, or "
            "'max-autotune-no-cudagraphs'"
        )
    return compiler


def _check_world(plan: StagedPlan) -> None:
    world = dist.get_world_size()
    if world != plan.num_devices:
        raise TensorOptError(
            f"the plan is for {plan.stages} stages of {plan.devices_of_stage} devices, but {world} "
            f"processes run; start torchrun with {plan.num_devices} processes in all, or plan "
            f"again for {world}"
        )


class StagePrograms(ModulePrograms):
    """Runs the steps of a stage.

    Attributes:
        foreign: the names of what other stages have, and this one does not.
    """

    def __init__(
        self,
        plan: StagedPlan,
        base: StagePart,
        storage: ModuleStorage,
        calls: StageCalls,
        foreign: frozenset[str],
    ) -> None:
        super().__init__(base.chunks[0].variant, storage, seed_generator(plan.fingerprint))
        self.foreign = foreign
        self.groups = base.groups
        self._calls = calls
        self._keeps = False  # gradients may be kept

    def call(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        reduces: bool,
        averages: bool,
        attempt: Attempt | None = None,
    ) -> Any:
        """See ``ModulePrograms``; no call is an attempt."""
        assert attempt is None
        mark = "" if reduces else ", without gradient synchronisation"
        with suppress(DifferentCallsError):
            return self._run_part(self._calls.find(args, kwargs, mark), reduces, averages)
        return self._run_part(self._calls.find_differing(args, kwargs, mark), reduces, averages)

    def _run_part(self, found: StageCall, reduces: bool, averages: bool) -> Any:
        if not found.part.uses_seeds:
            return self._run_seeded(found, 0, reduces, averages)
        seeds = self.seeds
        assert seeds is not None
        before = seeds.get_state()
        seed = int(torch.randint(2**62, (), generator=seeds))
        try:
            return self._run_seeded(found, seed, reduces, averages)
        except DifferentCallsError:
            seeds.set_state(before)
            raise

    def _run_seeded(self, found: StageCall, seed: int, reduces: bool, averages: bool) -> Any:
        part = found.part
        adds_kept = reduces and self._finds_kept()
        self._keeps = self._keeps or (part.schedule.makes_gradients and not reduces)
        root = self._storage.root
        with autocast_off(current_autocast()), run_by(root), _outside_of_checkpoints():
            step = StageStep(part, found.inputs, seed, reduces=reduces, adds_kept=adds_kept)
            with confirming(found.agreement):
                outputs = step.run()
        return pytree.tree_unflatten(list(found.own(outputs, averages)), part.out_spec)

    def _finds_kept(self) -> bool:
        self._keeps = self._keeps and any(is_kept(p) for p in self._storage.parameters())
        return self._keeps


@contextmanager
def _outside_of_checkpoints() -> Iterator[None]:
    """Inside of one around the module, what a step keeps is not made again: its backward would
    call the module, and all stages, once more in the middle of a step."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None or hooks[0].__module__ != checkpoint.__name__:
        yield
        return
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


def _named(root: nn.Module) -> list[list[tuple[str, torch.Tensor]]]:
    found: Any = (root.named_parameters, root.named_buffers)
    return [list(named(remove_duplicate=False)) for named in found]


class StagedModule(ParallelModule):
    """A rank's stage of a model: a ``ParallelModule`` whose parameters are those of the stage.

    Every rank is called with its share of the batch, if the plan was made with
    ``inputs='sharded'``, else with all of it, and gets the outputs of the whole model likewise.
    Calls of other kinds than the example of the plan run through the same stages.
    """

    def __init__(self, plan: StagedPlan, storage: ModuleStorage, programs: StagePrograms) -> None:
        any_plan: Any = plan
        super().__init__(any_plan, storage, programs)
        other = programs.foreign
        known = other.union(*({n for n, _ in own} for own in _named(storage.root)))

        def leave_out(_: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
            """After the ranks have agreed on what is given, each takes what its stage has."""
            unexpected = rest[3]
            names = {prefix + name for name in known}
            unexpected[:] = [name for name in unexpected if name not in names]
            for name in other:
                state.pop(prefix + name, None)

        register: Any = storage.root.register_load_state_dict_pre_hook
        register(leave_out)

    def extra_repr(self) -> str:
        """The plan, and what this rank runs."""
        return f"{self._plan}\nthis is stage {groups_of(self).stage}"


# No attribute of the module: all names but a few are those of the model.
def groups_of(parallel: StagedModule) -> StageGroups:
    """Of the job."""
    return _programs_of(parallel).groups


def foreign_of(parallel: StagedModule) -> frozenset[str]:
    """The names of parameters and buffers that other stages have, and this one does not."""
    return _programs_of(parallel).foreign


def _programs_of(parallel: StagedModule) -> StagePrograms:
    programs = programs_of(parallel)
    assert isinstance(programs, StagePrograms)
    return programs
