"""``parallelize``: a plan becomes a module on every rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch.calls.attribute_watch import AttributeWatch
from tensoropt_torch.calls.capture_check import CaptureCheck, ComparedBefore
from tensoropt_torch.collector import without_collections
from tensoropt_torch.emit.compiler import Compile, CompileOptions, compiler_of
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, ModelStructure, as_module
from tensoropt_torch.frontend.python_calls import check_hooks, remember_hooks
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.cut_constants import cut_constants
from tensoropt_torch.module.making import ProgramMaker
from tensoropt_torch.module.moving import PlanMover
from tensoropt_torch.module.out_of_memory import FindSmaller
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.module.stand_ins import stand_ins
from tensoropt_torch.module.step_hooks import watch_optimizers
from tensoropt_torch.module.storage import ModuleStorage
from tensoropt_torch.module.variants import VariantOptions
from tensoropt_torch.parameters.parameter_hooks import carry_hooks_over
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime.agreement import (
    CallAgreement,
    agree_on_model,
    agree_or_raise,
    on_all_ranks,
)
from tensoropt_torch.runtime.grad_scaler import agree_on_infinite_gradients
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.values.weights import WeightLoader, WeightSource


@without_collections()
def parallelize(
    model: nn.Module | torch.export.ExportedProgram,
    captured: CapturedModel,
    plan: Plan,
    device: torch.device,
    context: RankContext | None = None,
    weights: WeightSource | None = None,
    *,
    options: VariantOptions | None = None,
    one_process_random: bool = False,
    compile: Compile = False,
    compared: ComparedBefore | None = None,
    smaller: FindSmaller | None = None,
) -> ParallelModule:
    """The module that runs ``plan`` on this rank.

    Collective: every rank of the default process group calls it with the same
    model and plan. Parameters and buffers are those of rank 0, or what ``weights``
    gives where the model is on the meta device. Given ``options``, the module makes
    variants as they allow; else it runs the plan's graph alone.
    Unless ``options`` say otherwise, the model is kept on rank 0 until the first training
    call, where it is compared with the graph (``capture_check.py``), if ``compared`` does not
    know that an earlier job has done that.
    With ``one_process_random`` random operators draw what one process draws. With ``compile``
    what a rank computes is compiled (``compilation.py``). Steps that run out of memory are
    repeated under plans that ``smaller`` finds, if it is given (``out_of_memory.py``).

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of
            processes, the model, or the other ranks.
    """
    model = as_module(model)
    compiler = on_all_ranks(lambda: _compiler_of(compile, device, one_process_random))
    on_all_ranks(lambda: _check_world(plan))
    agree_on_model(captured)
    agree_or_raise("plan", plan.hash, "plan once and broadcast, or load the same file")
    on_all_ranks(lambda: plan.check_model(captured))
    on_all_ranks(lambda: check_hooks(model, captured.hooks))
    given = captured
    part = on_all_ranks(lambda: RankPart(plan, given, dist.get_rank()))
    captured = part.captured
    context = context or RankContext.make(part.sizes, device, own_groups=smaller is not None)
    loader = WeightLoader(
        model,
        {source.names[0]: part.placements(source) for source in captured.parameters},
        {source.names[0]: source.names for source in captured.parameters},
        context.mesh,
        device,
    )
    values = loader.load(weights or WeightSource(), captured.constants)
    constants = cut_constants(part, values.constants, context.mesh)
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    tables = {name: t for name, t in constants.items() if name not in buffers}
    structure = ModelStructure(model, captured.form, captured.blocks, captured.attributes.fills)
    named = {name: values.parameters[s.names[0]] for s in captured.parameters for name in s.names}
    root = stand_ins(
        structure.module,
        named,
        {name: constants[name] for name in buffers & constants.keys()},
        model,
    )
    on_all_ranks(lambda: remember_hooks(model, root))
    on_all_ranks(lambda: carry_hooks_over(model, root, named))
    attributes = AttributeWatch(root, structure.module, model, captured.form.loss_fn)
    wanted = options is not None and options.check_capture
    maker = ProgramMaker(
        structure,
        root,
        attributes,
        context,
        options,
        CaptureCheck.make(model, wanted, compared),
        one_process_random,
        compiler,
    )
    base = maker.base(part, tables)
    storage = ModuleStorage(root)
    programs = maker.programs(part, base, storage, seed_generator(plan.fingerprint))
    guard = None
    if smaller is not None:
        guard = smaller, CallAgreement(AxisGroups(part.sizes, device.type).create_control())
    module = ParallelModule(plan, storage, programs, PlanMover(maker), guard)
    _check_complete(model, module)
    watch_optimizers(model, module)
    agree_on_infinite_gradients()
    return module


def _check_world(plan: Plan) -> None:
    world = dist.get_world_size()
    if world != plan.num_devices:
        raise TensorOptError(
            f"the plan is for {plan.num_devices} devices, but {world} processes run; start "
            f"torchrun with {plan.num_devices} processes in all, or plan again for {world}"
        )


def _compiler_of(
    compile: Compile, device: torch.device, one_process_random: bool
) -> CompileOptions | None:
    compiler = compiler_of(compile)
    if compiler is None:
        return None
    compiler.check_device(device)
    if one_process_random:
        raise TensorOptError(
            "compile and one_process_random=True do not go together: compiled operators do not "
            "draw the numbers of the model; leave one of them out"
        )
    return compiler


def _check_complete(model: nn.Module, parallel: ParallelModule) -> None:
    names, own = (
        {name for name, _ in module.named_parameters(remove_duplicate=False)}
        for module in (parallel, model)
    )
    assert own <= names, f"parameters without a layout: {sorted(own - names)}"


def seed_generator(fingerprint: str) -> torch.Generator:
    """One stream of step seeds for all ranks, started from rank 0's default, which stays as it
    was: what the program draws next is what it draws without ``parallelize``. Other models
    have other streams."""
    default = torch.Generator()
    default.set_state(torch.get_rng_state())
    seed = torch.randint(2**62, (), generator=default)
    if dist.get_world_size() > 1:
        holder = [int(seed)]
        dist.broadcast_object_list(holder, 0)
        seed = torch.tensor(holder[0])
    return torch.Generator().manual_seed(int(seed) ^ int(fingerprint[:15], 16))
