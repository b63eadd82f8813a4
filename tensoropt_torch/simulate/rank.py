"""The module of one rank without processes, devices or memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch._C import _distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import GroupName

from tensoropt_torch import _C
from tensoropt_torch.emit.graph import GraphEmitter, axis_sets
from tensoropt_torch.emit.module import ParallelModule
from tensoropt_torch.emit.parallelize import local_shape, to_placements, value_of
from tensoropt_torch.emit.weights import parameter_of
from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.space import make_planner
from tensoropt_torch.runtime.groups import partition


@contextmanager
def silent_groups(sizes: Sequence[int], sets: Sequence[int], rank: int) -> Iterator[None]:
    """While this lasts, C++ operators find the groups of ``rank`` by the names of
    ``group_name``; they have sizes and cannot communicate."""
    groups = []  # the registry does not own them
    for axes in sets:
        ranks = next(ranks for ranks in partition(sizes, axes) if rank in ranks)
        group = c10d.ProcessGroup(c10d.HashStore(), ranks.index(rank), len(ranks))
        c10d._register_process_group(GroupName(group_name(axes)), group)
        groups.append(group)
    try:
        yield
    finally:
        for axes in sets:
            c10d._unregister_process_group(GroupName(group_name(axes)))


def group_name(axes: int) -> str:
    """What the group of an axis set is called in simulations."""
    return f"tensoropt_simulated_{axes}"


@dataclass(frozen=True)
class RankPart:
    """What one rank runs, apart from values."""

    plan: Plan
    captured: CapturedModel
    sizes: tuple[int, ...]  # of the mesh axes
    axis_sets: tuple[int, ...]  # whose groups are needed
    rank: int
    device: torch.device
    graph: fx.GraphModule
    mesh: DeviceMesh
    program: _C.RankProgram

    @staticmethod
    def of(plan: Plan, captured: CapturedModel, rank: int, device: torch.device) -> RankPart:
        """The part of ``rank`` in a plan of this model."""
        planner = make_planner(captured, plan.settings)
        program = _C.RankProgram(planner, plan.strategy(), rank)
        sizes = tuple(size for size, _ in plan.settings.mesh_axes)
        shape = sizes or (1,)
        mesh = DeviceMesh(
            device.type,
            torch.arange(plan.num_devices).view(shape),
            mesh_dim_names=tuple(f"axis{i}" for i in range(len(shape))),
            _init_backend=False,
            _rank=rank,
        )
        emitter = GraphEmitter(
            captured, planner, program, group_name, device, overlap=plan.settings.overlap
        )
        graph = emitter.emit()
        sets = tuple(axis_sets(program, planner, captured))
        return RankPart(plan, captured, sizes, sets, rank, device, graph, mesh, program)

    def module(self) -> ParallelModule:
        """The rank's module, its tensors made as the mode that is active makes them."""
        parameters: dict[str, nn.Parameter] = {}
        for source in self.captured.parameters:
            parameter = self._parameter(source)
            parameters |= dict.fromkeys(source.names, parameter)
        constants = {
            name: torch.empty(constant.shape, dtype=constant.dtype, device=self.device)
            for name, constant in self.captured.constants.items()
        }
        shapes = [self._shape(s) for s in self.captured.inputs if s.kind == "input"]
        buffers = dict.fromkeys(constants, True)
        return ParallelModule(
            self.captured, self.graph, parameters, constants, buffers, shapes, self.plan, None
        )

    def inputs(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Arguments of the module."""
        values = [
            self._empty(s) if s.kind == "input" else s.placeholder.meta["val"]
            for s in self.captured.inputs
        ]
        args, kwargs = torch.utils._pytree.tree_unflatten(values, self.captured.in_spec)
        return tuple(args), dict(kwargs)

    def _shape(self, source: Source) -> tuple[int, ...]:
        return local_shape(self.captured, source, self.program, self.sizes)

    def _empty(self, source: Source) -> torch.Tensor:
        dtype = source.placeholder.meta["val"].dtype
        return torch.empty(self._shape(source), dtype=dtype, device=self.device)

    def _parameter(self, source: Source) -> nn.Parameter:
        placements = to_placements(self.program.layout_of(value_of(self.captured, source)))
        whole = source.placeholder.meta["val"]
        return parameter_of(self._empty(source), self.mesh, placements, whole)


def named_nodes(graph: fx.GraphModule, note: Callable[[str], None]) -> fx.GraphModule:
    """The graph, which calls ``note`` with the name of a node before its call."""
    new = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function":
            new.call_function(note, (node.name,))
        copies[node] = new.node_copy(node, copies.__getitem__)
    return fx.GraphModule(graph, new)
