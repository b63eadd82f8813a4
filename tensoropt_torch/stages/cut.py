"""Cuts the captured graph of a micro-batch into those of stages.

::

    first, second = cut_graph(captured, [17])    # the calls before number 17, and the others
    second.received                              # what it gets of the first

What is made before a cut and used after it crosses it; used several stages later, it passes
through those between. Three kinds of values do not cross: inputs of the model, which every rank
has; what is cheap and depends on these alone, which each stage makes again; and parameters, each of
which is in all stages that use it.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch.batches.lowered import lowered
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.frontend.lowering import operator_name
from tensoropt_torch.frontend.micro_batching import Join, MicroBatching
from tensoropt_torch.frontend.passes.nodes import value_of
from tensoropt_torch.frontend.watching import Attributes
from tensoropt_torch.space.rows import loss_node
from tensoropt_torch.stages.roles import Roles, changed_by, floating_outputs


@dataclass(frozen=True)
class Crossing:
    """A value that goes from one stage to the next.

    Attributes:
        name: that of the node that makes it, in all stages.
        shape, dtype: of the whole micro-batch.
        order: its dims by descending stride, in which its memory is sent.
        has_gradient: whether one comes back.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]
    has_gradient: bool

    @property
    def num_bytes(self) -> int:
        """Of the whole micro-batch."""
        return math.prod(self.shape) * self.dtype.itemsize

    def packed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in memory that can be sent."""
        return tensor.permute(self.order).contiguous()

    def unpacked(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor of what was sent."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return memory.permute(inverse)


@dataclass(frozen=True)
class StageGraph:
    """The graph of a stage, of a model that is cut.

    Attributes:
        captured: takes inputs of the model, then those of ``received``; gives outputs of the
            model, then those of ``sent``.
        received: from the stage before.
        sent: to the stage after.
        inputs: the numbers of the model's inputs that it takes.
        outputs: the numbers of the model's outputs that it gives.
    """

    captured: CapturedModel
    received: tuple[Crossing, ...]
    sent: tuple[Crossing, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def parameters(self) -> list[str]:
        """First names of the parameters that it has."""
        return [source.names[0] for source in self.captured.parameters]


def tied_parameters(stages: Sequence[StageGraph]) -> dict[str, tuple[int, ...]]:
    """The stages of each parameter that is in several, by its first name."""
    found: dict[str, tuple[int, ...]] = {}
    for number, stage in enumerate(stages):
        for name in stage.parameters:
            found[name] = (*found.get(name, ()), number)
    return {name: numbers for name, numbers in found.items() if len(numbers) > 1}


def cut_graph(
    captured: CapturedModel, cuts: Sequence[int], *, deferred: bool = False
) -> list[StageGraph]:
    """The stages of a graph, which has a loss if gradients are made in its call.

    Args:
        cuts: before which calls, by their number among all calls, in ascending order.
        deferred: gradients are made later, of whatever is computed of the outputs.

    Raises:
        TensorOptError: it cannot be cut there; says what is in the way.
    """
    cutter = _Cutter(captured, cuts, deferred=deferred)
    return [cutter.stage(number) for number in range(len(cuts) + 1)]


def cut_stage(
    captured: CapturedModel, cuts: Sequence[int], number: int, roles: Roles | None = None
) -> StageGraph:
    """The one of this number of ``cut_graph``; the others are not written. ``roles`` of the nodes
    of the graph, if they are known."""
    return _Cutter(captured, cuts, roles).stage(number)


class _Cutter:
    """Which stage has what."""

    def __init__(
        self,
        captured: CapturedModel,
        cuts: Sequence[int],
        roles: Roles | None = None,
        deferred: bool = False,
    ) -> None:
        self._captured = captured
        self._cuts = tuple(cuts)
        self._num_stages = len(cuts) + 1
        output = captured.graph_module.graph.output_node()
        self._outputs = list(output.args[0])  # type: ignore[arg-type]
        loss = loss_node(captured)
        if not deferred:
            _check_gradients(captured, loss)
        _check(captured, cuts)
        self._loss = -1 if loss is None else self._outputs.index(loss)
        ends = floating_outputs(captured) if deferred else ()
        self.roles = roles or Roles(captured, loss, ends)
        self._stages = self._assigned()
        self._last_use = self._last_uses()
        self._output_stages = [self._output_stage(value) for value in self._outputs]
        self._check_stages(loss)
        self._check_buffers()

    def _output_stage(self, value: object) -> int:
        last = self._num_stages - 1
        return self._stages.get(value, last) if isinstance(value, fx.Node) else last

    def _assigned(self) -> dict[fx.Node, int]:
        """The stage of each call that is made once."""
        found: dict[fx.Node, int] = {}
        for number, node in enumerate(self.roles.calls):
            if node in self.roles.again:
                continue
            if node.target is operator.getitem and node.args[0] in found:
                found[node] = found[node.args[0]]
            else:
                found[node] = sum(cut <= number for cut in self._cuts)
        self._sink(found)
        return found

    def _sink(self, found: dict[fx.Node, int]) -> None:
        """What depends on no input is made where it is first used, and buffers change where they
        are read."""
        for node in reversed(self.roles.calls):
            if node in self.roles.before_batch:
                users = [found[user] for user in node.users if user in found]
                found[node] = max(found[node], min(users, default=0))
        for node in self.roles.calls:
            for memory in changed_by(node):
                users = [found[user] for user in memory.users if user in found and user != node]
                if node.target is torch.ops.aten.copy_.default and users:
                    found[node] = max(users)

    def _last_uses(self) -> dict[fx.Node, int]:
        """The last stage that uses the value of each call, those of the outputs aside."""
        last = dict(self._stages)
        for node, stage in self._stages.items():
            for operand in node.all_input_nodes:
                if operand in last:
                    last[operand] = max(last[operand], stage)
        return last

    def _check_stages(self, loss: fx.Node | None) -> None:
        for number in range(self._num_stages):
            if number not in self._stages.values():
                raise TensorOptError(
                    f"stage {number} computes nothing but what all stages make again; cuts are "
                    f"before calls {list(self._cuts)} of {len(self.roles.calls)}; move one of them"
                )
        last = self._num_stages - 1
        if isinstance(loss, fx.Node) and self._stages.get(loss, last) != last:
            raise TensorOptError(
                f"the loss ('{operator_name(loss)}') is computed in stage {self._stages[loss]}, "
                f"but the last one is {last}; leave out the cuts that are behind it"
            )

    def _check_buffers(self) -> None:
        for memory in self.roles.changed:
            stages = {self._stages[user] for user in memory.users if user in self._stages}
            if len(stages) > 1:
                name = next(s.names[0] for s in self._captured.sources if s.placeholder is memory)
                raise TensorOptError(
                    f"forward changes buffer '{name}', which is used in stages {sorted(stages)}: "
                    "a buffer that changes belongs to one stage; cut before or after the modules "
                    "that use it"
                )
        for node, stage in self._stages.items():
            late = [o for o in node.all_input_nodes if self._stages.get(o, 0) > stage]
            if late:
                raise TensorOptError(
                    f"forward changes a buffer in stage {stage} to what stage "
                    f"{self._stages[late[0]]} computes ({operator_name(late[0])}); cut before or "
                    "after the modules that use it"
                )

    def crossing(self, cut: int) -> list[fx.Node]:
        """The values that go from stage ``cut`` to the next."""
        found = [n for n in self._stages if self._stages[n] <= cut < self._last_use[n]]
        for node in found:
            if not isinstance(node.meta.get("val"), torch.Tensor):
                raise TensorOptError(
                    f"the cut after stage {cut} is within what operator '{operator_name(node)}' "
                    f"({node.target}) gives, which is no single tensor; move it by one call"
                )
        return found

    def stage(self, number: int) -> StageGraph:
        """The one of this number."""
        received = [] if number == 0 else self.crossing(number - 1)
        sent = [] if number == self._num_stages - 1 else self.crossing(number)
        outputs = [i for i, stage in enumerate(self._output_stages) if stage == number]
        own = {node for node, stage in self._stages.items() if stage == number}
        given = [self._outputs[index] for index in outputs]
        writer = _StageWriter(self._captured, self.roles, received)
        graph = writer.write(own, given, sent)
        crossings = [self._crossing(node) for node in (*received, *sent)]
        captured = self._lowered(number, graph, writer, [len(outputs), len(sent)])
        joins = self._joins(outputs, len(sent))
        captured = replace(captured, micro_batching=self._micro(writer, joins, outputs))
        return StageGraph(
            captured,
            tuple(crossings[: len(received)]),
            tuple(crossings[len(received) :]),
            tuple(writer.inputs),
            tuple(outputs),
        )

    def _crossing(self, node: fx.Node) -> Crossing:
        value = value_of(node)
        has_gradient = node in self.roles.trained
        return Crossing(
            node.name, tuple(value.shape), value.dtype, memory_order(value), has_gradient
        )

    def _joins(self, outputs: Sequence[int], num_sent: int) -> tuple[Join, ...]:
        micro = self._captured.micro_batching
        own: list[Join] = ["same" if micro is None else micro.joins[index] for index in outputs]
        return (*own, *(["same"] * num_sent))  # type: ignore[arg-type]

    def _micro(
        self, writer: _StageWriter, joins: tuple[Join, ...], outputs: Sequence[int]
    ) -> MicroBatching:
        micro = self._captured.micro_batching
        received = [False] * len(writer.received)
        loss = outputs.index(self._loss) if self._loss in outputs else -1
        if micro is None:
            split = [False] * len(writer.inputs)
            return MicroBatching(1, (*split, *received), joins, loss)
        split = [micro.split[number] for number in writer.inputs]
        numbers = {source.names[0]: n for n, source in enumerate(writer.sources)}
        sources = [self._captured.sources[number].names[0] for number in micro.total_sources]
        has_totals = any(source.kind == "total" for source in writer.sources)
        totals = micro.totals if has_totals else None
        taken = tuple(numbers[name] for name in sources) if has_totals else ()
        return MicroBatching(micro.count, (*split, *received), joins, loss, totals, taken)

    def _lowered(
        self, number: int, graph: fx.Graph, writer: _StageWriter, sizes: Sequence[int]
    ) -> CapturedModel:
        names = {name for source in writer.sources for name in source.names}
        num_outputs, num_sent = sizes
        # What is sent is no loss, be it a scalar.
        given: Any = tuple(range(num_outputs + num_sent))
        spec = pytree.tree_structure(given if num_outputs else {"loss": (), "sent": given})
        inputs = sum(source.kind in ("input", "literal") for source in writer.sources)
        cuts = ",".join(map(str, self._cuts))
        return replace(
            lowered(self._captured, graph, writer.sources),
            in_spec=pytree.tree_structure((tuple(range(inputs)), {})),
            out_spec=spec,
            constants={n: c for n, c in self._captured.constants.items() if n in names},
            fingerprint=f"{self._captured.fingerprint}/{number}of{self._num_stages}at{cuts}",
            attributes=Attributes(),
            batch=None,
        )


class _StageWriter:
    """Writes the graph of one stage.

    Attributes:
        sources: of the graph.
        inputs: the numbers of the model's inputs among them.
    """

    def __init__(self, captured: CapturedModel, roles: Roles, received: Sequence[fx.Node]) -> None:
        self._captured = captured
        self._roles = roles
        self.received = received
        self.sources: list[Source] = []
        self.inputs: list[int] = []
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}

    def write(
        self, own: set[fx.Node], outputs: Sequence[object], sent: Sequence[fx.Node]
    ) -> fx.Graph:
        """With these calls, outputs of the model, and values that go on."""
        given = {value for value in outputs if isinstance(value, fx.Node)}
        calls = own | (given & self._roles.again)
        calls |= self._roles.needed_again(calls)
        self._sources(given.union(*(node.all_input_nodes for node in calls)))
        for node in self._captured.graph_module.graph.nodes:
            if node in calls:
                self._copies[node] = self._graph.node_copy(node, self._copies.__getitem__)
        leaves: Any = (*outputs, *sent)
        values = fx.map_arg(leaves, self._copies.__getitem__)
        old = self._captured.graph_module.graph.output_node()
        new = self._graph.output(values)
        new.meta = dict(old.meta)
        self._graph.lint()
        return self._graph

    def _sources(self, used: set[fx.Node]) -> None:
        micro = self._captured.micro_batching
        numbered = list(enumerate(self._captured.sources))
        totals = [s for _, s in numbered if s.kind == "total"]
        needed: set[int] = set()
        if micro is not None and any(source.placeholder in used for source in totals):
            used = used | {source.placeholder for source in totals}
            needed = set(micro.total_sources)
        inputs = {id(source): number for number, source in enumerate(self._captured.inputs)}
        for kinds in (("parameter", "constant"), ("input", "literal")):
            for number, source in numbered:
                if source.kind in kinds and (source.placeholder in used or number in needed):
                    self._source(source)
                    if id(source) in inputs:
                        self.inputs.append(inputs[id(source)])
        for node in self.received:
            self._received(node)
        for source in totals:
            if source.placeholder in used:
                self._source(source)

    def _source(self, source: Source) -> None:
        new = self._graph.node_copy(source.placeholder)
        new.meta = dict(source.placeholder.meta)
        self._copies[source.placeholder] = new
        self.sources.append(replace(source, placeholder=new))

    def _received(self, node: fx.Node) -> None:
        value, order = value_of(node), memory_order(value_of(node))
        new = self._graph.placeholder(node.name)
        inverse = sorted(range(len(order)), key=order.__getitem__)
        with torch.no_grad():
            fake = value.new_empty([value.shape[dim] for dim in order]).permute(inverse).detach()
        new.meta = {**node.meta, "val": fake.requires_grad_(node in self._roles.trained)}
        self._copies[node] = new
        self.sources.append(Source(new, "input", (node.name,)))


def memory_order(value: torch.Tensor) -> tuple[int, ...]:
    """The dims of a tensor by descending stride; those of size 1 and broadcast ones stay."""
    strides, order = value.stride(), list(range(value.dim()))
    moving = [dim for dim in order if value.shape[dim] > 1 and strides[dim] > 0]
    for place, dim in zip(moving, sorted(moving, key=lambda d: -strides[d]), strict=True):
        order[place] = dim
    return tuple(order)


def _check_gradients(captured: CapturedModel, loss: fx.Node | None) -> None:
    """Of those that are made in the call."""
    if loss is None and captured.context.gradients:
        raise TensorOptError(
            "the model has no loss that stages could begin backward with; let it return a scalar "
            "loss, give loss_fn= and call it with targets, call it under torch.no_grad(), or give "
            "find_stages schedule='gpipe', whose backward begins with that of your loss"
        )
    if captured.context.gradients and torch.float16 in dict(captured.context.autocast).values():
        raise TensorOptError(
            "gradients of float16 are made before a GradScaler scales the loss, in stages; give "
            "find_stages schedule='gpipe', which makes them later, use autocast to bfloat16, or "
            "plan without stages"
        )


def _check(captured: CapturedModel, cuts: Sequence[int]) -> None:
    calls = captured.num_calls
    if any(not 0 < cut < calls for cut in cuts) or any(
        not first < second for first, second in itertools.pairwise(cuts)
    ):
        raise TensorOptError(
            f"cuts are {list(cuts)}; give numbers of calls in ascending order, above 0 and below "
            f"{calls}, the number of all"
        )
    if captured.attributes.written is not None:
        raise TensorOptError(
            "forward writes tensors into attributes of the model, which stages do not; return "
            "them with the loss, or plan without stages"
        )
    for source in captured.inputs:
        value = source.placeholder.meta.get("val")
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise TensorOptError(
                f"input '{source.names[0]}' requires a gradient, which stages do not give; "
                "detach it, or plan without stages"
            )
