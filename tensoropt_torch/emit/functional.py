"""Writes what a rank does as functions of tensors alone, which a compiler may have as a whole:
ATen calls, and functional collectives for whatever goes to other ranks.

::

    program = FunctionalWriter(records, is_local).emit()
    program.main          # an fx.GraphModule: no hook, no queue, no call without a result

What only looks, such as checks of ids, and raises is written besides: what can be said from the
inputs is done **before** the graph, and what sums over the ranks say **after** it. Parameters come
in as local tensors, each with its chain of reshards; tensors that backward makes again carry the
tag of that (``torch.utils.checkpoint``), which PyTorch's partitioner obeys.

A graph may be **cut** where gradients of parameters are sent to these: it then ends there, at
leaves that it takes besides. For micro-batches it takes values of parameters that are **held**.

It refuses, by ``NotFunctionalError``, what has no such form: most collectives inside of operators,
random operators other than dropout, the user's Python, and halos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from tensoropt_torch import _C
from tensoropt_torch.emit.eager_writer import EagerWriter
from tensoropt_torch.emit.traced import TRACED
from tensoropt_torch.emit.written import changed_inputs
from tensoropt_torch.frontend.python_calls import is_python_call
from tensoropt_torch.operators import OPS
from tensoropt_torch.program import records as r
from tensoropt_torch.program.edges import GradientEdge
from tensoropt_torch.program.passes import RankRecords
from tensoropt_torch.program.reshards import GroupName, dtypes, named, runs_again
from tensoropt_torch.runtime import functional, functional_losses
from tensoropt_torch.runtime.functional import NotFunctionalError
from tensoropt_torch.runtime.random import call_seeded, draws, seeded_dropout

# Those that are not sequences of ATen calls by themselves, and functions of ATen calls and
# collectives that take what they take.
_INSTEAD: Mapping[Any, Callable[..., Any]] = {
    OPS.batch_norm_groups.default: functional.batch_norm_groups,
    OPS.cross_entropy_vocab.default: functional_losses.cross_entropy_vocab,
}
RECOMPUTE = "recompute"  # in the meta of nodes, as PyTorch's partitioner looks for it


@dataclass(frozen=True)
class FunctionalProgram:
    """What a rank does.

    Attributes:
        before: takes the inputs of the rank, looks at them, and gives what ``main`` takes of that;
            None: there is nothing to look at.
        main: takes the tensors of ``inputs``, the seed of the step as a tensor if it
            ``takes_seed``, what ``before`` gives, the values that are held, and the leaves.
        inputs: the numbers of those inputs of the rank that ``main`` takes.
        after: takes what ``main`` gives beyond ``outputs``, and looks at it.
        outputs: how many tensors ``main`` gives that are outputs of the rank.
        output: what the rank gives, with the numbers of these in place of tensors.
        changed: the numbers of the tensors that ``main`` takes and changes.
        held: how many values are.
        leaves: the parameters whose gradients end at one, by name, in order.
    """

    before: fx.GraphModule | None
    main: fx.GraphModule
    inputs: tuple[int, ...]
    takes_seed: bool
    after: fx.GraphModule | None
    outputs: int
    output: Any
    changed: tuple[int, ...]
    held: int = 0
    leaves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """The number of a tensor among the outputs of ``main``."""

    number: int


class FunctionalWriter:
    """Writes the graph of one rank.

    Args:
        untrained: the names of inputs that train nothing, which may be looked at beforehand.
        is_cut: whether the gradient ends where it is sent to the parameter; None: none does,
            and no value is held.
    """

    def __init__(
        self,
        program: RankRecords,
        untrained: frozenset[str],
        is_cut: Callable[[GradientEdge], bool] | None = None,
    ) -> None:
        self._records = program.records
        self._group_name = program.group_name
        self._untrained = untrained
        self._is_cut = is_cut
        self._held: dict[r.Value, fx.Node] = {}  # by the results of reshards
        self._leaves: dict[str, fx.Node] = {}  # by the names of parameters
        self._graph = fx.Graph()
        self._nodes: dict[r.Value, fx.Node] = {}
        self._seed: r.Value | None = None
        self._remade: frozenset[r.Value] = frozenset()

    def emit(self) -> FunctionalProgram:
        """What was written.

        Raises:
            NotFunctionalError: a record has no such form.
        """
        first, main, last = _split(self._records, self._untrained)
        *inputs, seed = [record for record in self._records if isinstance(record, r.Input)]
        self._seed = seed.result
        given = _given_before(first, main, inputs, last)
        for source in (*inputs, seed):
            self._nodes[source.result] = self._graph.placeholder(source.name)
        for number, value in enumerate(given):
            self._nodes[value] = self._graph.placeholder(f"before_{number}")
        if self._is_cut is not None:
            self._take_borders(main, self._is_cut)
        self._remade = frozenset(k.value for k in main if isinstance(k, r.Keep))
        for record in main:
            if not isinstance(record, (r.Input, r.Output, r.Keep, r.BeginValues)):
                self._write(record)
        return self._finished(first, last, inputs, given)

    def _finished(
        self,
        first: Sequence[r.Record],
        last: Sequence[r.Record],
        inputs: Sequence[r.Input],
        given: Sequence[r.Value],
    ) -> FunctionalProgram:
        output = self._records[-1]
        assert isinstance(output, r.Output) and self._seed is not None
        values = list(dict.fromkeys(r.values_in(output.values)))
        places = {value: Place(number) for number, value in enumerate(values)}
        seen = list(dict.fromkeys(value for record in last for value in r.taken(record)))
        self._graph.output(tuple(self._nodes[value] for value in (*values, *seen)))
        seed = self._nodes[self._seed]
        takes_seed = bool(seed.users)
        nodes = [self._nodes[record.result] for record in inputs]
        used = tuple(number for number, node in enumerate(nodes) if node.users)
        for node in (*nodes, *([] if takes_seed else [seed])):
            if not node.users:
                self._graph.erase_node(node)
        self._graph.lint()
        found, _ = changed_inputs(self._graph)
        changed = tuple(place for place in found if place < len(used))
        early = {value for record in first for value in r.taken(record)}
        for source in (inputs[used[place]] for place in changed):
            if source.result in early:
                raise NotFunctionalError(f"ids that are checked read '{source.name}'")
        return FunctionalProgram(
            _looking(self._records, first, given, self._group_name),
            fx.GraphModule(torch.nn.Module(), self._graph, "FunctionalRankGraph"),
            used,
            takes_seed,
            _looking(
                [r.Input(v, f"seen_{n}") for n, v in enumerate(seen)], last, (), self._group_name
            ),
            len(values),
            fx.node.map_aggregate(
                output.values, lambda leaf: places[leaf] if isinstance(leaf, r.Value) else leaf
            ),
            changed,
            len(self._held),
            tuple(self._leaves),
        )

    def _take_borders(
        self, records: Sequence[r.Record], is_cut: Callable[[GradientEdge], bool]
    ) -> None:
        """The values that are held, in their order, then the leaves."""
        borders = [border for record in records for border in _borders(record)]
        for result, programs, _ in borders:
            if programs.held:
                self._held[result] = self._graph.placeholder(f"held_{len(self._held)}")
        for _, _, edge in borders:
            if edge is not None and is_cut(edge):
                self._leaves[edge.parameter] = self._graph.placeholder(f"leaf_{len(self._leaves)}")

    # --- Records

    def _write(self, record: r.Record) -> None:
        write = _WRITE.get(type(record))
        if write is None:
            raise NotFunctionalError(f"{_WORDS.get(type(record), type(record).__name__)}")
        write(self, record)

    def _call(
        self,
        result: r.Value,
        function: Callable[..., Any],
        *args: Any,
        again: bool = False,
        **kwargs: Any,
    ) -> fx.Node:
        self._nodes[result] = node = self._graph.call_function(function, args, kwargs)
        if again:
            node.meta[RECOMPUTE] = CheckpointPolicy.MUST_RECOMPUTE
            node.meta["ac_graph_id"] = 0
        return node

    def _with_nodes(self, tree: Any) -> Any:
        return fx.node.map_aggregate(
            tree, lambda leaf: self._nodes[leaf] if isinstance(leaf, r.Value) else leaf
        )

    def _alias(self, result: r.Value, source: r.Value) -> None:
        self._nodes[result] = self._nodes[source]

    def item(self, record: r.Item) -> None:
        self._call(record.result, record.function, self._nodes[record.source], record.index)

    def copy(self, record: r.Copy) -> None:
        self._call(record.result, torch.ops.aten.clone.default, self._nodes[record.source])

    def call(self, record: r.Call) -> None:
        args, kwargs = self._with_nodes((record.args, dict(record.kwargs)))
        function: Any = _INSTEAD.get(record.function, record.function)
        if function is call_seeded:
            function, args = _dropout(args), _dropout_arguments(args)
        elif function is record.function:
            _check_call(record)
        self._call(record.result, function, *args, again=record.runs_again, **kwargs)

    def scale(self, record: r.Scale) -> None:
        mul, source = torch.ops.aten.mul.Tensor, self._nodes[record.source]
        self._call(record.result, mul, source, record.factor, again=record.runs_again)

    def take_parameters(self, record: r.TakeParameters) -> None:
        for result, source in zip(record.results, record.sources, strict=True):
            self._alias(result, source)

    def reshard(self, record: r.Reshard | r.ReshardParameter) -> None:
        self._resharded(record.source, *_borders(record)[0])

    def reshard_gradients(self, record: r.ReshardGradients) -> None:
        for source, border in zip(record.sources, _borders(record), strict=True):
            self._resharded(source, *border)

    def _resharded(
        self,
        source: r.Value,
        result: r.Value,
        programs: _C.EmittedReshard,
        edge: GradientEdge | None,
    ) -> None:
        x, held = self._nodes[source], self._held.get(result)
        leaf = None if edge is None else self._leaves.get(edge.parameter)
        backward = named(programs.backward, self._group_name)
        if held is not None and leaf is None:
            reduce = {k: v for k, v in dtypes(programs).items() if k == "reduce_dtype"}
            self._call(result, functional.held_value, x, held, *backward, **reduce)
            return
        if held is not None:
            self._nodes[result] = held
        else:
            again = runs_again(programs) or result in self._remade
            call = functional.reshard, x, *named(programs.forward, self._group_name), *backward
            self._call(result, *call, again=again, **dtypes(programs))
        if leaf is not None:
            self._call(result, functional.left_at, self._nodes[result], leaf)

    def count_out_of_range(self, record: r.CountOutOfRange) -> None:
        ranges = record.ranges
        found = [self._nodes[value] for value in ranges.found]
        call = OPS.out_of_range.default, found, [*ranges.lows], [*ranges.highs]
        self._call(record.result, *call)

    def reduce(self, record: r.Reduce) -> None:
        shares = [self._nodes[value] for value in record.shares]
        buffers = record.buffers
        own = [self._nodes[value] for value in buffers.values]
        about = [*buffers.begins], [*buffers.lengths], [*buffers.ranks]
        call = functional.forward_sums, (shares, own, *about, record.group)
        sums, means = (
            self._graph.call_function(getitem, (made, place))
            for made in [self._graph.call_function(*call)]
            for place in range(2)
        )
        for index, result in enumerate(record.results):
            self._call(result, getitem, sums, index)
        for index, buffer in enumerate(own):
            mean = self._graph.call_function(getitem, (means, index))
            self._graph.call_function(torch.ops.aten.copy_.default, (buffer, mean))

    def sum_of(self, record: r.SumOf) -> None:
        operands = self._nodes[record.sum], self._nodes[record.share]
        self._call(record.result, functional.sum_of, *operands)


Border = tuple[r.Value, _C.EmittedReshard, GradientEdge | None]


def _borders(record: r.Record) -> list[Border]:
    """What a record reshards: each result, by which programs, and whose gradient it sends."""
    if isinstance(record, r.Reshard | r.ReshardParameter):
        return [(record.result, record.programs, record.gradient)]
    if isinstance(record, r.ReshardGradients):
        return [*zip(record.results, record.programs, record.gradients, strict=True)]
    return []


def _check_call(record: r.Call) -> None:
    function = record.function
    if not isinstance(function, OpOverload):
        raise NotFunctionalError(f"'{function}' is no operator of PyTorch")
    if record.node is not None and is_python_call(record.node):
        raise NotFunctionalError(f"'{record.node.name}' runs Python of the model")
    if function.namespace == "tensoropt" and (function not in TRACED or any(record.groups)):
        raise NotFunctionalError(f"operator {function} works with other ranks, or by values")
    if draws(function, record.args, record.kwargs):
        raise NotFunctionalError(f"operator {function} draws random numbers")


def _dropout(args: Sequence[Any]) -> Callable[..., Any]:
    if args[0] is not torch.ops.aten.dropout.default:
        raise NotFunctionalError(f"operator {args[0]} draws random numbers")
    return seeded_dropout


def _dropout_arguments(args: Sequence[Any]) -> tuple[Any, ...]:
    _, step_seed, stream, x, *rest = args
    return x, *rest, step_seed, stream


# --- What is looked at before and after

_LOOKS = (r.CheckLookup, r.BoundLookup, r.Confirm)
Split = tuple[list[r.Record], list[r.Record], list[r.Record]]


def _split(records: Sequence[r.Record], untrained: frozenset[str]) -> Split:
    """The records before the graph, those of the graph, and those after it."""
    makers = {value: record for record in records for value in r.given(record)}
    first: dict[int, None] = {}
    for record in records:
        if isinstance(record, _LOOKS):
            _add_with_makers(record, makers, untrained, first)
    last: list[r.Record] = [one for one in records if isinstance(one, r.CheckCounts)]
    main: list[r.Record] = [one for one in records if not isinstance(one, (*_LOOKS, r.CheckCounts))]
    return [one for one in records if id(one) in first], main, last


def _add_with_makers(
    record: r.Record,
    makers: Mapping[r.Value, r.Record],
    untrained: frozenset[str],
    found: dict[int, None],
) -> None:
    """With all that makes what it takes, which must be made from inputs that train nothing."""
    if isinstance(record, r.Input):
        if record.name not in untrained:
            raise NotFunctionalError(f"ids that are checked depend on '{record.name}'")
        return
    if id(record) in found:
        return
    for value in r.taken(record):
        _add_with_makers(makers[value], makers, untrained, found)
    if isinstance(record, r.Call) and record.function is call_seeded:
        raise NotFunctionalError("ids that are checked are drawn")
    found[id(record)] = None


def _given_before(
    first: Sequence[r.Record],
    main: Sequence[r.Record],
    inputs: Sequence[r.Input],
    last: Sequence[r.Record],
) -> list[r.Value]:
    """What is made before alone, and taken later."""
    looked = {v for record in first if isinstance(record, _LOOKS) for v in r.given(record)}
    taken = (value for record in (*main, *last) for value in r.taken(record))
    return list(dict.fromkeys(value for value in taken if value in looked))


def _looking(
    inputs: Sequence[r.Record],
    looks: Sequence[r.Record],
    given: Sequence[r.Value],
    group_name: GroupName,
) -> fx.GraphModule | None:
    """A graph that looks at the inputs among these records."""
    if not looks:
        return None
    own = [record for record in inputs if isinstance(record, r.Input)]
    records = [*own, *looks, r.Output(tuple(given), _NO_NODE)]
    return EagerWriter(RankRecords(records, False, group_name)).emit()


_NO_NODE = fx.Graph().placeholder("output")  # what looks gives is of no captured graph

_WORDS: Mapping[type[Any], str] = {
    r.ExchangeHalo: "borders are exchanged with neighbours",
    r.AgreeOnDraws: "random operators draw what one process draws",
}
_WRITE: Mapping[type[Any], Callable[[FunctionalWriter, Any], None]] = {
    r.Item: FunctionalWriter.item,
    r.Copy: FunctionalWriter.copy,
    r.Call: FunctionalWriter.call,
    r.Scale: FunctionalWriter.scale,
    r.Reshard: FunctionalWriter.reshard,
    r.TakeParameters: FunctionalWriter.take_parameters,
    r.ReshardGradients: FunctionalWriter.reshard_gradients,
    r.ReshardParameter: FunctionalWriter.reshard,
    r.CountOutOfRange: FunctionalWriter.count_out_of_range,
    r.Reduce: FunctionalWriter.reduce,
    r.SumOf: FunctionalWriter.sum_of,
}
