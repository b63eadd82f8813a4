"""The module of one rank without processes, devices or memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import fx, nn
from torch._C import _distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import GroupName
from torch.distributed.tensor import Replicate

from tensoropt_torch.config import DeviceType
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import Source
from tensoropt_torch.module.executor import Executor
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.module.programs import ModulePrograms
from tensoropt_torch.module.stand_ins import containers
from tensoropt_torch.module.storage import ModuleStorage
from tensoropt_torch.module.variant import Variant, variant_of
from tensoropt_torch.program.schedule import Schedule, in_alike_micro_batches
from tensoropt_torch.runtime.meshes import mesh_axes_of, partition
from tensoropt_torch.simulate.fused_attention import set_attention
from tensoropt_torch.values.placements import dtensor_of
from tensoropt_torch.values.weights import parameter_of

META = torch.device("meta")
_CPU = torch.device("cpu")
# Recurrent layers, which PyTorch gives to oneDNN on a CPU and computes by single operators
# elsewhere (those split by units are single operators anyway), and attention inside an operator,
# which has no fused kernel on the meta device.
_OF_CPU = re.compile(r"(lstm|gru|rnn|recurrent)(?!_shard)|balanced_causal_attention")
# Bags of embeddings keep other numbers on a CPU; GPUs keep what the meta device has.
_BAGS = re.compile("embedding_bag")


@contextmanager
def silent_groups(sizes: Sequence[int], rank: int, axis_sets: Sequence[int]) -> Iterator[None]:
    """While this lasts, C++ operators find the groups of a rank of a mesh of these sizes by the
    names of ``group_name``; they have sizes and cannot communicate."""
    groups = []  # the registry does not own them
    for axes in axis_sets:
        ranks = next(ranks for ranks in partition(sizes, axes) if rank in ranks)
        group = silent_group(ranks.index(rank), len(ranks))
        c10d._register_process_group(GroupName(group_name(axes)), group)
        groups.append(group)
    try:
        yield
    finally:
        for axes in axis_sets:
            c10d._unregister_process_group(GroupName(group_name(axes)))


def silent_group(rank: int, size: int) -> c10d.ProcessGroup:
    """A group that cannot communicate."""
    return c10d.ProcessGroup(c10d.HashStore(), rank, size)


def group_name(axes: int) -> str:
    """What the group of an axis set is called in simulations."""
    return f"tensoropt_simulated_{axes}"


@dataclass(frozen=True)
class SimulatedRank:
    """One rank's part of a plan, whose process groups are silent. Its tensors have no memory, and
    what depends on a device is as on CPUs: they are on the meta ``device``, or where its kernels
    are others, on a CPU, as fake ones, which take longer."""

    part: RankPart
    device: torch.device
    graph: fx.Graph
    mesh: DeviceMesh

    @staticmethod
    def of(part: RankPart, planned: DeviceType = "cpu", first_draw: int = 0) -> SimulatedRank:
        """The rank of a part of a plan for this type of device; ``first_draw`` as of
        ``RankPart.records``."""
        graph = part.emitter(_CPU, group_name, first_draw=first_draw).write()
        of_cpu = any(_has_kernels_of_a_cpu(node, planned) for node in graph.nodes)
        device = _CPU if of_cpu else META
        return SimulatedRank(part, device, graph, _mesh_of(part, device))

    def on(self, device: torch.device) -> SimulatedRank:
        """The same with its tensors on this device."""
        return replace(self, device=device, mesh=_mesh_of(self.part, device))

    @property
    def graphs(self) -> tuple[fx.Graph, ...]:
        """Of which there is one."""
        return (self.graph,)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """While this lasts, C++ operators find the groups of the rank."""
        with silent_groups(self.part.sizes, self.part.rank, self.part.axis_sets):
            yield

    def module(self) -> ParallelModule:
        """The rank's module, as the mode that is active makes it."""
        captured = self.part.captured
        parameters = {source.names[0]: self.parameter(source) for source in captured.parameters}
        constants = {
            name: torch.empty(constant.shape, dtype=constant.dtype, device=self.device)
            for name, constant in captured.constants.items()
        }
        constants |= self.cut_constants()
        named = {
            name: parameters[source.names[0]]
            for source in captured.parameters
            for name in source.names
        }
        root = containers(named, constants)
        graph = fx.GraphModule(nn.Module(), self.graph)
        base = variant_of(self.part, graph, root, {}, False, group_name)
        storage = ModuleStorage(root)
        executor = _AlikeMicroBatches(storage.parameters)
        programs = ModulePrograms(base, storage, executor=executor)
        return ParallelModule(self.part.plan, storage, programs)

    def rehearse(self, module: nn.Module, inputs: Sequence[object]) -> None:
        """Nothing: operators run one by one."""

    def inputs(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Arguments of the module."""
        captured = self.part.captured
        values = [self._input(source) for source in captured.inputs]
        args, kwargs = torch.utils._pytree.tree_unflatten(values, captured.in_spec)
        return tuple(args), dict(kwargs)

    def _input(self, source: Source) -> object:
        if source.kind == "input":
            return self._empty(source, self.part.called_shape(source))
        return source.placeholder.meta["val"]

    def _empty(self, source: Source, shape: tuple[int, ...]) -> torch.Tensor:
        dtype = source.placeholder.meta["val"].dtype
        return torch.empty(shape, dtype=dtype, device=self.device)

    def cut_constants(self) -> dict[str, torch.Tensor]:
        """Those of which the rank has a part, by name."""
        found: dict[str, torch.Tensor] = {}
        for source in self.part.cut_constants:
            found |= dict.fromkeys(source.names, self._cut_constant(source))
        return found

    def _cut_constant(self, source: Source) -> torch.Tensor:
        local = self._empty(source, self.part.local_shape(source))
        whole = source.placeholder.meta["val"]
        return dtensor_of(local, self.mesh, self.part.placements(source), whole)

    def parameter(self, source: Source) -> nn.Parameter:
        """The part that the rank has of a parameter."""
        whole = source.placeholder.meta["val"]
        if source.blocks is not None:
            whole = whole.new_empty(source.blocks.together(whole.shape))
            whole.requires_grad_(source.placeholder.meta["val"].requires_grad)
        placements = self.part.placements(source)
        local = self._empty(source, self.part.local_shape(source))
        return parameter_of(local, self.mesh, placements, whole)

    def unused(self, source: Source) -> nn.Parameter:
        """A parameter that no graph takes: every rank has it whole."""
        whole = source.placeholder.meta["val"]
        local = self._empty(source, tuple(whole.shape))
        return parameter_of(local, self.mesh, [Replicate()] * self.mesh.ndim, whole)


class _AlikeMicroBatches(Executor):
    """Runs no micro-batch that needs the memory of the one before it."""

    def schedule(self, variant: Variant, reduces: bool) -> Schedule:
        return in_alike_micro_batches(super().schedule(variant, reduces))


def _mesh_of(part: RankPart, device: torch.device) -> DeviceMesh:
    shape, names = mesh_axes_of(part.sizes)
    return DeviceMesh(
        device.type,
        torch.arange(part.plan.num_devices).view(shape),
        mesh_dim_names=names,
        _init_backend=False,
        _rank=part.rank,
    )


def _has_kernels_of_a_cpu(node: fx.Node, planned: DeviceType) -> bool:
    """Whether a node calls one of these, or gives it to what calls it."""
    if node.op != "call_function":
        return False
    called = [str(one) for one in (node.target, *node.args) if callable(one)]
    return any(_OF_CPU.search(name) or (planned == "cpu" and _BAGS.search(name)) for name in called)


def name_nodes(graph: fx.Graph, note: Callable[[str], None], device: DeviceType) -> None:
    """Makes the graph call ``note`` with the name of a node before its call, and attention by the
    kernel of a device."""
    for node in list(graph.nodes):
        if node.op == "call_function":
            with graph.inserting_before(node):
                graph.call_function(note, (node.name,))
        set_attention(node, device)
