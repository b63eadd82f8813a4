"""``parallelize``: a plan becomes a module on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard

from tensoropt_torch import _C
from tensoropt_torch.emit.graph import GraphEmitter, axis_sets
from tensoropt_torch.emit.module import ParallelModule
from tensoropt_torch.emit.weights import WeightLoader, WeightSource
from tensoropt_torch.emit.whole_draws import WholeDraws
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, Source, as_module
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.space import make_planner
from tensoropt_torch.runtime.agreement import agree_on_model, agree_or_raise, on_all_ranks
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

    @property
    def num_devices(self) -> int:
        """The product of the mesh axes."""
        return math.prod(self.sizes)

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
    weights: WeightSource | None = None,
    *,
    one_process_random: bool = False,
) -> ParallelModule:
    """The module that runs ``plan`` on this rank.

    Collective: every rank of the default process group calls it with the same
    model and plan. Parameters and buffers are those of rank 0, or what ``weights``
    gives where the model is on the meta device. With ``one_process_random`` random
    operators draw what one process draws.

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of
            processes, the model, or the other ranks.
    """
    model = as_module(model)
    on_all_ranks(lambda: _check_world(plan))
    agree_on_model(captured)
    agree_or_raise("plan", plan.hash, "plan once and broadcast, or load the same file")
    on_all_ranks(lambda: plan.check_model(captured))
    planner = make_planner(captured, plan.settings)
    program = _C.RankProgram(planner, plan.strategy(), dist.get_rank())
    sizes = [size for size, _ in plan.settings.mesh_axes]
    context = context or RankContext.make(sizes, device)
    context.groups.create(axis_sets(program, planner, captured))
    draws = WholeDraws(planner, plan.config, sizes, dist.get_rank()) if one_process_random else None
    emitter = GraphEmitter(
        captured,
        planner,
        program,
        context.groups.name,
        device,
        draws,
        overlap=plan.settings.overlap,
    )
    rank_graph = emitter.emit()
    layouts = {s.names[0]: program.layout_of(value_of(captured, s)) for s in captured.parameters}
    loader = WeightLoader(
        model,
        {name: to_placements(layout) for name, layout in layouts.items()},
        {s.names[0]: s.names for s in captured.parameters},
        context.mesh,
        device,
    )
    values = loader.load(weights or WeightSource(), captured.constants)
    parameters = {n: values.parameters[s.names[0]] for s in captured.parameters for n in s.names}
    _check_complete(model, parameters)
    shapes = [
        local_shape(captured, s, program, sizes) for s in captured.inputs if s.kind == "input"
    ]
    seeds = _seed_generator() if emitter.uses_seeds else None
    saved = model.state_dict().keys()
    buffers = {name: name in saved for name, _ in model.named_buffers(remove_duplicate=False)}
    return ParallelModule(
        captured, rank_graph, parameters, values.constants, buffers, shapes, plan, seeds
    )


def _check_world(plan: Plan) -> None:
    world = dist.get_world_size()
    if world != plan.num_devices:
        raise TensorOptError(
            f"the plan is for {plan.num_devices} devices, but {world} processes run; start "
            f"torchrun with {plan.num_devices} processes in all, or plan again for {world}"
        )


def to_placements(layout: str) -> list[Placement]:
    """A layout such as ``"S0,R"`` as DTensor placements."""
    if not layout:
        return [Replicate()]
    return [Shard(int(p[1:])) if p[0] == "S" else Replicate() for p in layout.split(",")]


def value_of(captured: CapturedModel, source: Source) -> int:
    """The value of the C++ graph that a source gives."""
    return captured.lowering.values[source.placeholder][0]


def _check_complete(model: nn.Module, parameters: Mapping[str, Any]) -> None:
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    missing = sorted(own - set(parameters))
    assert not missing, f"parameters without a layout: {missing}"


def local_shape(
    captured: CapturedModel, source: Source, program: _C.RankProgram, sizes: Sequence[int]
) -> tuple[int, ...]:
    """The shape of this rank's part of a parameter, buffer or input, on a mesh with
    axes of these sizes."""
    shape = list(source.placeholder.meta["val"].shape)
    for size, placement in zip(
        sizes, to_placements(program.layout_of(value_of(captured, source))), strict=False
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
