"""What one rank runs under a plan, put together: by ``parallelize`` with values and process
groups, by a simulation without either.

::

    part = RankPart(plan, captured, rank)
    groups.create(part.axis_sets)
    writer = part.emitter(device, groups.name)
    graph = writer.emit()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_

import torch
from torch.distributed.tensor import Placement, Shard

from tensoropt_torch import _C
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.emit.eager_writer import EagerWriter
from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.plan import Plan, Settings
from tensoropt_torch.program.averaged_buffers import averaged_axes
from tensoropt_torch.program.local_calls import CallSite, draws
from tensoropt_torch.program.number_inputs import takes_numbers
from tensoropt_torch.program.passes import ProgramOptions, RankRecords
from tensoropt_torch.program.whole_draws import WholeDraws
from tensoropt_torch.space.local_form import LocalForm
from tensoropt_torch.space.rows import OutputRows, rows_of_outputs
from tensoropt_torch.space.search_space import core_cluster, make_space
from tensoropt_torch.values.parts import coordinate_of, part_at
from tensoropt_torch.values.placements import placements_of


class RankPart:
    """One rank's part of a model under a plan: its graph, which is that of a micro-batch if
    the plan has several, and what it has of parameters and inputs.

    Requires that the plan was made for the model, and if ``storage`` is given, with
    parameters pinned to it.
    """

    def __init__(
        self,
        plan: Plan,
        captured: CapturedModel,
        rank: int,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan.with_model(captured)
        assert self.plan.captured is not None
        self.captured = captured = self.plan.captured
        self.rank = rank
        self.sizes = tuple(size for size, _ in plan.settings.mesh_axes)
        self._space = make_space(captured, plan.settings, storage)
        self._strategy = plan.choices.strategy(self._space, check=True)
        self._program = _C.RankProgram(self._space, self._strategy, rank)

    @property
    def axis_sets(self) -> list[int]:
        """Those whose process groups the rank needs, ascending."""
        sets = {axes for _, found in self.gathers.values() for axes in found}
        for edge in range(len(self._space.edges())):
            reshard = self._program.reshard(_C.SpaceEdgeId(edge))
            sets.update(reshard.forward.groups, reshard.backward.groups)
        lookup_axes = 0  # whose ranks agree whether what they look up is in range
        for form in self._forms:
            sets |= form.axis_sets
            lookup_axes = reduce(or_, (lookup.axes for lookup in form.lookups), lookup_axes)
        return sorted((sets | {lookup_axes, averaged_axes(self._forms)}) - {0})

    @cached_property
    def _forms(self) -> list[LocalForm]:
        """The local forms of all calls."""
        nodes = self.captured.lowering.nodes.items()
        calls = [number for node, number in nodes if node.op == "call_function"]
        return [LocalForm.of(self._program.call(number)) for number in calls]

    @property
    def random_calls(self) -> int:
        """How many calls draw random numbers."""
        nodes = [n for n in self.captured.lowering.nodes if n.op == "call_function"]
        known = frozenset(self.captured.lowering.rules.targets())
        pairs = zip(nodes, self._forms, strict=True)
        return sum(draws(node, form, known) for node, form in pairs)

    @property
    def takes_numbers(self) -> bool:
        """Whether the rank's calls can take the numbers that the graph has as inputs."""
        nodes = self.captured.lowering.nodes
        calls = [node for node in nodes if node.op == "call_function"]
        return takes_numbers(self.captured, list(zip(calls, self._forms, strict=True)))

    @cached_property
    def gathers(self) -> dict[int, tuple[Sequence[int], Sequence[int]]]:
        """How shares of inputs become the whole ones that totals of micro-batches are made of,
        by the number of the source: encoded programs, and the axis sets of their groups."""
        micro = self.captured.micro_batching
        if micro is None:
            return {}
        numbers = micro.total_sources
        sources = [(number, self.captured.sources[number]) for number in numbers]
        return {n: self._gather(s) for n, s in sources if not self._is_whole(s)}

    def _is_whole(self, source: Source) -> bool:
        return not any(isinstance(placement, Shard) for placement in self.placements(source))

    def _gather(self, source: Source) -> tuple[Sequence[int], Sequence[int]]:
        settings = self.plan.settings
        cluster = core_cluster(parse_cluster(settings.cluster, "settings"), settings.mesh_axes)
        mesh = _C.Mesh(list(settings.mesh_axes))
        value = source.placeholder.meta["val"]
        shape = [*value.shape]
        shape[0] *= self.captured.micro_batches
        tensor = _C.ReshardedTensor(shape=shape, item_size=value.itemsize)
        collectives = _C.AnalyticCollectives(cluster, mesh)
        resharder = _C.TensorResharder(mesh, collectives, cluster.device, tensor)
        whole = ",".join("R" for _ in self.sizes)
        program = resharder.encode(self._layout(source), whole, self.rank)
        return program.steps, program.groups

    def emitter(
        self,
        device: torch.device,
        group_name: Callable[[int], str],
        *,
        one_process_random: bool = False,
        first_draw: int = 0,
    ) -> EagerWriter:
        """What writes the rank's graph; arguments as of ``records``."""
        own = self.records(
            device, group_name, one_process_random=one_process_random, first_draw=first_draw
        )
        return EagerWriter(own)

    def records(
        self,
        device: torch.device,
        group_name: Callable[[int], str],
        *,
        one_process_random: bool = False,
        first_draw: int = 0,
    ) -> RankRecords:
        """What the rank does; ``group_name`` is that of its process group, by axis set, and
        ``first_draw`` the number of its first random call."""
        nodes, settings = self.captured.lowering.nodes, self.plan.settings
        draws = WholeDraws(self._space, nodes, self._strategy.config, self.sizes, self.rank)
        options = ProgramOptions(
            self.sizes,
            averaged_axes(self._forms),
            settings.overlap,
            settings.bucket_bytes,
            settings.shard_bytes,
            draws if one_process_random else None,
            first_draw,
        )
        site = CallSite(device, group_name)
        return RankRecords.of(self.captured, self._space, self._program, site, options)

    @property
    def storage(self) -> dict[str, str]:
        """The layouts of what the graphs of a module share, parameters and buffers, by their
        first names."""
        found = dict.fromkeys(self.captured.constants, ",".join("R" for _ in self.sizes))
        for source in self.captured.sources:
            if source.kind in ("parameter", "constant"):
                found[source.names[0]] = self._layout(source)
        folded = {source.names[0] for source in self.captured.sources if source.is_folded}
        return {name: layout for name, layout in found.items() if name not in folded}

    def _layout(self, source: Source) -> str:
        return self._program.layout_of(self.captured.lowering.values[source.placeholder][0])

    def output_rows(self, settings: Settings) -> tuple[OutputRows, ...]:
        """Where outputs have the rows of the batch of which ``settings`` share out inputs."""
        gathered = self.plan.inputs != settings.inputs
        shares = 1 if gathered else settings.num_shares
        return rows_of_outputs(self.captured, self._space, settings.shares, shares)

    def placements(self, source: Source) -> list[Placement]:
        """How a parameter, constant or input lies on the mesh."""
        return list(placements_of(self._layout(source), source.blocks, self.sizes))

    @property
    def cut_constants(self) -> list[Source]:
        """The buffers and folded constants of which ranks have parts only."""
        constants = (source for source in self.captured.sources if source.kind == "constant")
        return [source for source in constants if not self._is_whole(source)]

    @property
    def views(self) -> dict[str, tuple[int, ...]]:
        """The shapes in which the graph takes the rank's parts of parameters that it sees by
        blocks, by their first names."""
        blocks = self.captured.blocks
        sources = [source for source in self.captured.parameters if source.names[0] in blocks]
        return {source.names[0]: self._shape_in_graph(source) for source in sources}

    def called_shape(self, source: Source) -> tuple[int, ...]:
        """The shape of an input as the rank's module is called with it: the micro-batches of
        a step together."""
        shape = self.local_shape(source)
        micro = self.captured.micro_batching
        if micro is None or not micro.split[self.captured.inputs.index(source)]:
            return shape
        return (shape[0] * micro.count, *shape[1:])

    def local_shape(self, source: Source) -> tuple[int, ...]:
        """The shape of the rank's part of a parameter, constant or input of the graph."""
        shape = self._shape_in_graph(source)
        return shape if source.blocks is None else source.blocks.together(shape)

    def _shape_in_graph(self, source: Source) -> tuple[int, ...]:
        placements = placements_of(self._layout(source))[: len(self.sizes)]
        dims = [p.dim if isinstance(p, Shard) else None for p in placements]
        shape = source.placeholder.meta["val"].shape
        part = part_at(shape, dims, self.sizes, coordinate_of(self.rank, self.sizes))
        return tuple(cut.stop - cut.start for cut in part)
