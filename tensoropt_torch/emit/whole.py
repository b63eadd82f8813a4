"""A rank's step as two compiled graphs: one of forward, one of backward, with all collectives.

::

    whole = whole_graph(part, records, Backend("inductor", buckets), otherwise)
    outputs = whole.forward(*inputs, seed)       # as the graph of the rank, ``otherwise``

AOTAutograd traces both of the functional graph at the first call, with tensors of no memory, and
hands them to the backend. Ranks then compare which collectives their graphs have, one after the
other. Unless all have the same, or where the compiler fails on some rank, all run ``otherwise``
from then on, and the log says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.distributed.distributed_c10d import GroupName
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.ahead import BACKENDS, Backend, Compiled, compiled_ahead
from tensoropt_torch.emit.apart import Apart
from tensoropt_torch.emit.boxed import is_watched
from tensoropt_torch.emit.collective_buckets import Buckets
from tensoropt_torch.emit.compiled_halves import CompiledHalves, Seen
from tensoropt_torch.emit.compiler import CUDA_GRAPHS, CompileOptions
from tensoropt_torch.emit.functional import FunctionalProgram, FunctionalWriter, Place
from tensoropt_torch.emit.one_node import Trained
from tensoropt_torch.emit.overlap_times import OverlapTimes
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.logs import get_logger
from tensoropt_torch.program.edges import GradientEdge
from tensoropt_torch.program.passes import RankRecords
from tensoropt_torch.program.reshards import Program
from tensoropt_torch.runtime.agreement import confirm_call, gather
from tensoropt_torch.runtime.functional import Collective, NotFunctionalError, left_at
from tensoropt_torch.runtime.functional import reshard as functional_reshard
from tensoropt_torch.runtime.lost_ranks import LostRanksError
from tensoropt_torch.runtime.random import seed_tensor
from tensoropt_torch.units import format_duration

log = get_logger(__name__)

_NOT_USED = "collectives are not compiled, what is between them is: %s"


@dataclass(frozen=True)
class _Lies:
    """How what a graph takes lies in memory: the strides, and apart from what it changes."""

    strides: list[tuple[int, ...]]
    apart: Apart


class WholeGraph:
    """Takes and gives what the graph of a rank does, which is ``otherwise``.

    Attributes:
        reason: why that is run instead; empty: it is not.
    """

    def __init__(
        self,
        program: FunctionalProgram,
        backend: Backend,
        otherwise: fx.GraphModule | None = None,
    ) -> None:
        self.reason = ""
        self._program = program
        self._backend = backend
        self._otherwise = otherwise
        self._compiled: dict[bool, tuple[Compiled, _Lies]] = {}
        self._halves: CompiledHalves | None = None
        self._known_places: tuple[tuple[int, ...], list[int | None]] | None = None
        self._leaves, self._spec = pytree.tree_flatten(
            program.output, is_leaf=lambda leaf: isinstance(leaf, Place)
        )

    @property
    def num_graphs(self) -> int:
        """How many graphs were compiled so far: with gradients, each with its backward, and
        without."""
        return len(self._compiled)

    @property
    def is_at_once(self) -> bool:
        """Whether ``outputs_at_once`` may give some."""
        return self._halves is not None

    def forward(self, *values: Any) -> Any:
        """The outputs of the rank; ``values`` are its inputs and the seed of the step."""
        outputs = None if self.reason else self.outputs(values)
        if outputs is None:
            assert self._otherwise is not None
            return self._otherwise.forward(*values)
        return outputs

    def outputs(
        self,
        values: Sequence[Any],
        more: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None = None,
    ) -> Any:
        """The same; None: it cannot be compiled. ``more`` gives what the graph takes besides
        these tensors."""
        taken = self.taken(values)
        if more is not None:
            taken += more(taken)
        gradients = torch.is_grad_enabled()
        if gradients not in self._compiled and not self._compile(taken):
            return None
        compiled, lies = self._compiled[gradients]
        copies = self._lay_out(taken, lies)
        made = compiled(*taken)
        for tensor, own in copies:
            tensor.copy_(own)
        return self._finished(made)

    def outputs_at_once(self, values: Sequence[Any], trained: Trained) -> Any:
        """The same, by one node of autograd that gives parameters their gradients; None: not
        now. The values have none."""
        halves = self._halves
        if halves is None or self.reason or not torch.is_grad_enabled() or is_watched():
            return None
        if not trained.tensors:
            return None
        taken = self.taken(values)
        copies = self._lay_out(taken, self._compiled[True][1])
        made = halves.run(taken, trained, self._places(trained.numbers))
        if made is None:
            return None
        for tensor, own in copies:
            tensor.copy_(own)
        return self._finished(made)

    def _places(self, numbers: tuple[int, ...]) -> list[int | None]:
        """Where values of these numbers are among what the graph takes."""
        if self._known_places is None or self._known_places[0] != numbers:
            place = {number: place for place, number in enumerate(self._program.inputs)}
            self._known_places = numbers, [place.get(number) for number in numbers]
        return self._known_places[1]

    def taken(self, values: Sequence[Any]) -> list[torch.Tensor]:
        """What the graph takes, of the inputs of the rank and the seed of the step."""
        program = self._program
        given: Sequence[Any] = ()
        if program.before is not None:
            with torch.no_grad():
                given = program.before.forward(*values)
        seed = [seed_tensor(values[-1])] if program.takes_seed else []
        return [*[values[number] for number in program.inputs], *seed, *given]

    def _finished(self, made: Sequence[Any]) -> Any:
        """The outputs of the rank, of what the graph gives."""
        program = self._program
        if program.after is not None:
            program.after.forward(*made[program.outputs :])
        leaves = [made[leaf.number] if isinstance(leaf, Place) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)

    def _lay_out(
        self, taken: list[torch.Tensor], lies: _Lies
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Makes them lie in memory as those did for which the graph was compiled; gives copies of
        what the graph changes, with what they are of."""
        changed, strides = self._program.changed, lies.strides
        if [*map(torch.Tensor.stride, taken)] == strides and lies.apart.is_so_for(taken):
            return []
        written = {taken[number].untyped_storage()._cdata for number in changed}
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, tensor in enumerate(taken):
            is_changed = number in changed
            shared = written and not is_changed and tensor.untyped_storage()._cdata in written
            if tensor.stride() != strides[number] or shared:
                own = tensor.new_empty_strided(tensor.shape, strides[number])
                taken[number] = own.copy_(tensor)
                copies += [(tensor, own)] if is_changed else []
        return copies

    def _compile(self, taken: Sequence[torch.Tensor]) -> bool:
        """Compiles both graphs on all ranks; False: some rank cannot, or has others."""
        graph, seen = self._program.main, Seen()
        compiled, self.reason = compiled_alike(self._backend, graph, taken, seen)
        if compiled is None:
            return False
        gradients = torch.is_grad_enabled()
        lies = _Lies([t.stride() for t in taken], Apart(self._program.changed))
        self._compiled[gradients] = compiled, lies
        is_replayed = bool(self._backend.patches.get(CUDA_GRAPHS))  # which trees of these see to
        if gradients and not is_replayed:
            outputs = graph.graph.output_node().args[0]
            assert isinstance(outputs, Sequence)
            self._halves = seen.halves(len(outputs), len(taken))
        return True


def compiled_alike(
    backend: Backend, graph: fx.GraphModule, taken: Sequence[torch.Tensor], seen: Seen
) -> tuple[Compiled | None, str]:
    """A graph that all ranks have compiled, for tensors like these; or why there is none.
    Collective."""
    confirm_call()  # what follows is collective
    begin = time.perf_counter()
    compiled, error = None, ""
    try:
        compiled = compiled_ahead(backend, graph, taken, seen)
    except LostRanksError:
        raise
    except Exception as caught:
        error = str(caught) or type(caught).__name__
    groups = {one.group: _ranks_of(one.group) for calls in seen.collectives for one in calls}
    reason = _reason(gather((error, seen.collectives, groups)))
    if reason or compiled is None:
        log.warning(_NOT_USED, reason)
        return None, reason
    count = sum(map(len, seen.collectives))
    duration = format_duration(time.perf_counter() - begin)
    log.info("compiled a step with %d collectives in %s", count, duration)
    return compiled, ""


class CutGraph(WholeGraph):
    """The graph of a rank whose gradients end where they are sent to parameters: the executor has
    them then, adds them up, or keeps them.

    ::

        outputs = cut.forward_to(values, held, leaves_of)   # None: it cannot be compiled
    """

    def __init__(self, program: FunctionalProgram, backend: Backend) -> None:
        super().__init__(program, backend.without_cuda_graphs)  # what it gives is kept
        self._likes: dict[str, torch.Tensor] | None = None
        self._reductions: dict[tuple[str, ...], Compiled | None] = {}

    def forward_to(
        self,
        values: Sequence[Any],
        held: Sequence[torch.Tensor],
        leaves_of: Callable[[Mapping[str, torch.Tensor]], Sequence[torch.Tensor]],
    ) -> Any:
        """As ``forward``, of these inputs and the seed, with the values that are held.
        ``leaves_of`` makes the leaves of parameters of tensors of the same shape, dtype and device,
        which have no memory."""
        if self.reason:
            return None

        def more(taken: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            if self._likes is None:
                self._likes = _like_leaves(self._program, [*taken, *held])
            return [*held, *leaves_of(self._likes)]

        return self.outputs(values, more)

    def reduced(
        self, gradients: Mapping[str, torch.Tensor], programs: Mapping[str, Program]
    ) -> dict[str, torch.Tensor] | None:
        """What these programs make of the gradients of parameters, in buckets; None: that cannot
        be compiled."""
        names = tuple(sorted(gradients))
        taken = [gradients[name].contiguous() for name in names]
        with torch.no_grad():
            if names not in self._reductions:
                graph = _reduction([programs[name] for name in names])
                self._reductions[names], _ = compiled_alike(self._backend, graph, taken, Seen())
            compiled = self._reductions[names]
            return None if compiled is None else dict(zip(names, compiled(*taken), strict=True))


def _reduction(programs: Sequence[Program]) -> fx.GraphModule:
    """A graph that runs one on each of its inputs."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"gradient_{i}") for i in range(len(programs))]
    graph.output(
        tuple(
            graph.call_function(functional_reshard, (x, *program))
            for x, program in zip(inputs, programs, strict=True)
        )
    )
    return fx.GraphModule(torch.nn.Module(), graph, "ReducedGradients")


class _LeavesFound(fx.Interpreter):
    """Runs the graph, and sees where leaves would be."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.found: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.target is left_at:
            value, leaf = n.args
            assert isinstance(value, fx.Node) and isinstance(leaf, fx.Node)
            found: torch.Tensor = self.env[value]
            self.found[leaf.name] = found
            return found
        return super().run_node(n)


def _like_leaves(
    program: FunctionalProgram, taken: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Tensors without memory that are like the leaves, which follow these tensors."""
    names = [n.name for n in program.main.graph.find_nodes(op="placeholder")][len(taken) :]
    finding = _LeavesFound(program.main)
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with torch.no_grad(), mode:
        fakes = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in taken
        ]
        finding.run(*fakes, *(None for _ in names))
    found = zip(program.leaves, (finding.found[name] for name in names), strict=True)
    return {
        parameter: torch.empty((), dtype=fake.dtype, device=fake.device).expand(fake.shape)
        for parameter, fake in found
    }


# Of a rank: why it has none, its collectives by graph, and the ranks of their groups, which only
# those know who are in them.
_Report = tuple[str, list[list[Collective]], dict[str, list[int]]]


def _reason(reports: Sequence[_Report]) -> str:
    """Why the graphs of the ranks cannot run together; empty: they can."""
    for rank, (error, *_) in enumerate(reports):
        if error:
            return f"rank {rank}: {error.strip().splitlines()[0]}"
    return "" if _are_alike(reports) else "the collectives of the ranks' graphs differ"


def _are_alike(reports: Sequence[_Report]) -> bool:
    """Whether ranks call the same ones in the same order: those of a group of the same tensors.
    Where parts differ in size other groups have others."""
    names = [[[one.name for one in calls] for calls in graphs] for _, graphs, _ in reports]
    if any(own != names[0] for own in names):
        return False
    calls = [[one for calls in graphs for one in calls] for _, graphs, _ in reports]
    return all(
        calls[member][place] == one
        for own, (*_, groups) in zip(calls, reports, strict=True)
        for place, one in enumerate(own)
        for member in groups[one.group]
    )


def _ranks_of(group: str) -> list[int]:
    resolved = torch._C._distributed_c10d._resolve_process_group(GroupName(group))
    return torch.distributed.get_process_group_ranks(resolved)


def whole_graph(
    part: RankPart, records: RankRecords, backend: Backend, otherwise: fx.GraphModule
) -> WholeGraph | None:
    """That of a rank's records; None: there is none, which the log explains. Collective."""
    program = _program(part, records, backend, None)
    if program is None:
        return None
    return WholeGraph(program, backend, otherwise)


def cut_graph(
    part: RankPart,
    records: RankRecords,
    backend: Backend,
    is_cut: Callable[[GradientEdge], bool],
) -> CutGraph | None:
    """That which ends where gradients are sent to their parameters; likewise. Collective."""
    program = _program(part, records, backend, is_cut)
    if program is None:
        return None
    return CutGraph(program, backend)


def backend_of(
    part: RankPart, options: CompileOptions, group_name: Callable[[int], str]
) -> Backend:
    """What compiles the rank's graphs: with the buckets of the plan, or with those that Inductor
    makes by the plan's times."""
    settings = part.plan.settings
    if options.collectives == "plan":
        buckets = Buckets(int(settings.bucket_bytes), int(settings.shard_bytes))
        return Backend(options.backend, buckets, options.patches)
    own = {
        "enable_overlap_scheduling": True,
        "collective_bucketing": True,
        "compute_estimator": "analytical",
        "custom_runtime_estimation": OverlapTimes(settings, part.axis_sets, group_name),
    }
    patches = {f"aten_distributed_optimizations.{name}": value for name, value in own.items()}
    return Backend(options.backend, Buckets(), {**options.patches, **patches})


def _program(
    part: RankPart,
    records: RankRecords,
    backend: Backend,
    is_cut: Callable[[GradientEdge], bool] | None,
) -> FunctionalProgram | None:
    program, reason = None, ""
    sources = part.captured.sources
    untrained = frozenset(s.placeholder.name for s in sources if s.kind != "parameter")
    try:
        if backend.name not in BACKENDS:
            raise NotFunctionalError(f"backend '{backend.name}' is none of {', '.join(BACKENDS)}")
        program = FunctionalWriter(records, untrained, is_cut).emit()
    except NotFunctionalError as error:
        reason = str(error)
    reason = next((text for text in gather(reason) if text), "")
    if program is None or reason:
        log.info(_NOT_USED, reason)
        return None
    return program
