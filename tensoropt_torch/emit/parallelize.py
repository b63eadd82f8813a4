"""``parallelize``: a plan becomes a module on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from tensoropt_torch import _C
from tensoropt_torch.emit.graph import GraphEmitter, axis_sets
from tensoropt_torch.emit.module import ParallelModule
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, Source, as_module
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.space import make_planner
from tensoropt_torch.runtime.agreement import agree_or_raise, on_all_ranks
from tensoropt_torch.runtime.groups import AxisGroups


@dataclass(frozen=True)
class RankContext:
    """The base mesh and its process groups on this rank.

    Several modules may share one, so that groups are made once.
    """

    sizes: tuple[int, ...]
    device: torch.device
    mesh: DeviceMesh
    groups: AxisGroups

    @staticmethod
    def make(sizes: Sequence[int], device: torch.device) -> RankContext:
        """Collective. A single device is a mesh with one axis of size 1."""
        names = tuple(f"axis{i}" for i in range(max(1, len(sizes))))
        mesh = init_device_mesh(device.type, tuple(sizes) or (1,), mesh_dim_names=names)
        return RankContext(tuple(sizes), device, mesh, AxisGroups(sizes, device.type))


def parallelize(
    model: nn.Module | torch.export.ExportedProgram,
    captured: CapturedModel,
    plan: Plan,
    device: torch.device,
    context: RankContext | None = None,
) -> ParallelModule:
    """The module that runs ``plan`` on this rank.

    Collective: every rank of the default process group calls it with the same
    model and plan. Parameters and buffers are those of rank 0.

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of
            processes, the model, or the other ranks.
    """
    model = as_module(model)
    on_all_ranks(lambda: _check_world(plan))
    agree_or_raise("model", captured.fingerprint, "pass the same model and inputs on every rank")
    agree_or_raise("plan", plan.hash, "plan once and broadcast, or load the same file")
    on_all_ranks(lambda: _check_model(plan, captured, model))
    planner = make_planner(captured, plan.settings)
    program = _C.RankProgram(planner, plan.strategy(), dist.get_rank())
    sizes = [size for size, _ in plan.settings.mesh_axes]
    context = context or RankContext.make(sizes, device)
    context.groups.create(axis_sets(program, planner, captured))
    emitter = GraphEmitter(captured, planner, program, context.groups.name, device)
    rank_graph = emitter.emit()
    parameters = _shard_parameters(model, captured, program, context)
    constants = _copy_buffers(model, captured, device)
    shapes = [
        _local_shape(captured, s, program, sizes) for s in captured.inputs if s.kind == "input"
    ]
    seeds = _seed_generator() if emitter.uses_random else None
    saved = model.state_dict().keys()
    buffers = {name: name in saved for name, _ in model.named_buffers(remove_duplicate=False)}
    return ParallelModule(captured, rank_graph, parameters, constants, buffers, shapes, plan, seeds)


def _check_world(plan: Plan) -> None:
    world = dist.get_world_size()
    if world != plan.num_devices:
        raise TensorOptError(
            f"the plan is for {plan.num_devices} devices, but {world} processes run; start "
            f"torchrun with {plan.num_devices} processes in all, or plan again for {world}"
        )


def _check_model(plan: Plan, captured: CapturedModel, model: nn.Module) -> None:
    if plan.fingerprint != captured.fingerprint:
        raise TensorOptError(
            f"the plan was made for another model or batch (fingerprint {plan.fingerprint}); "
            f"{type(model).__name__} with these inputs has fingerprint {captured.fingerprint}; "
            "plan again for this model"
        )


def to_placements(layout: str) -> list[Placement]:
    """A layout such as ``"S0,R"`` as DTensor placements."""
    if not layout:
        return [Replicate()]
    return [Shard(int(p[1:])) if p[0] == "S" else Replicate() for p in layout.split(",")]


def _value_of(captured: CapturedModel, source: Source) -> int:
    return captured.lowering.values[source.placeholder][0]


def _shard_parameters(
    model: nn.Module,
    captured: CapturedModel,
    program: _C.RankProgram,
    context: RankContext,
) -> dict[str, nn.Parameter]:
    own = dict(model.named_parameters(remove_duplicate=False))
    parameters: dict[str, nn.Parameter] = {}
    for source in captured.parameters:
        original = own[source.names[0]]
        placements = to_placements(program.layout_of(_value_of(captured, source)))
        shard = _shard(source.names[0], original, placements, context)
        parameter = nn.Parameter(shard, requires_grad=original.requires_grad)
        parameters.update(dict.fromkeys(source.names, parameter))
    _check_complete(own, parameters)
    return parameters


def _check_complete(own: Mapping[str, nn.Parameter], parameters: Mapping[str, Any]) -> None:
    missing = sorted(set(own) - set(parameters))
    assert not missing, f"parameters without a layout: {missing}"


def _copy_buffers(
    model: nn.Module, captured: CapturedModel, device: torch.device
) -> dict[str, torch.Tensor]:
    """Buffers and other constants, whole: the model's own are not changed. Names of
    one tensor stay names of one tensor."""
    own = dict(model.named_buffers(remove_duplicate=False))
    copies: dict[int, torch.Tensor] = {}
    result: dict[str, torch.Tensor] = {}
    for name, constant in captured.constants.items():
        original = own.get(name, constant)
        if id(original) not in copies:
            copies[id(original)] = _copy_of_first_rank(name, original, device)
        result[name] = copies[id(original)]
    return result


def _shard(
    name: str,
    original: torch.Tensor,
    placements: list[Placement],
    context: RankContext,
) -> DTensor:
    mesh = context.mesh
    whole = _copy_of_first_rank(name, original, context.device)
    local = whole
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            local = local.chunk(mesh.size(axis), placement.dim)[coordinate[axis]]
    return DTensor.from_local(
        local.clone(memory_format=torch.contiguous_format),
        mesh,
        placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.contiguous().stride(),
    )


def _copy_of_first_rank(name: str, original: torch.Tensor, device: torch.device) -> torch.Tensor:
    if original.device.type == "meta":
        raise TensorOptError(
            f"'{name}' is on the meta device, so it has no values to train with; build the "
            "model with real tensors for parallelize (planning alone does not need them)"
        )
    tensor = original.detach().to(device, copy=True).contiguous()
    if dist.get_world_size() > 1:
        dist.broadcast(tensor, 0)
    return tensor


def _local_shape(
    captured: CapturedModel, source: Source, program: _C.RankProgram, sizes: Sequence[int]
) -> tuple[int, ...]:
    shape = list(source.placeholder.meta["val"].shape)
    for size, placement in zip(
        sizes, to_placements(program.layout_of(_value_of(captured, source))), strict=False
    ):
        if isinstance(placement, Shard):
            shape[placement.dim] //= size
    return tuple(shape)


def _seed_generator() -> torch.Generator:
    """One stream of step seeds for all ranks, started from rank 0's default."""
    seed = torch.randint(2**62, ())
    if dist.get_world_size() > 1:
        holder = [int(seed)]
        dist.broadcast_object_list(holder, 0)
        seed = torch.tensor(holder[0])
    return torch.Generator().manual_seed(int(seed))
