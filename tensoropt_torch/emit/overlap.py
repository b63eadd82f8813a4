"""Reshards of parameters that run together, or while the rank computes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.runtime import reuse
from tensoropt_torch.runtime.parameter_queue import parameter_queue


@dataclass(frozen=True)
class Programs:
    """The reshard of an edge on one rank: encoded programs and names of process groups, of
    the value in forward and of its gradient in backward; and what is saved of it. The value is
    cast to ``dtype`` before, the gradient to ``reduce_dtype``, which may be ``is_bucketed``:
    summed together with others. A value that is gathered along ``gathered_dim``, to
    ``value_bytes``, may be gathered together with others. ``recomputes_source``: backward
    makes again what is resharded. ``held``: of the micro-batches of a step only the first
    reshards the value, the others find it."""

    forward: list[int]
    forward_groups: list[str]
    backward: list[int]
    backward_groups: list[str]
    saved: _C.Saved
    dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    is_bucketed: bool = False
    gathered_dim: int | None = None
    value_dtype: torch.dtype = torch.float32
    value_bytes: float = 0
    recomputes_source: bool = False
    held: bool = False

    @property
    def is_reshard(self) -> bool:
        """Whether the layout of the value or of its gradient changes."""
        return bool(self.forward or self.backward)

    def waits_in_queue(self, overlap: bool) -> bool:
        """Whether the reshard of a parameter is written by ``Overlap``."""
        communicates = bool(self.forward_groups or self.backward_groups)
        shares = self.is_bucketed or self.gathered_dim is not None or self.held
        return shares or (overlap and communicates)

    @property
    def changes_gradient_alone(self) -> bool:
        """Whether the value is used as it is."""
        return not (self.forward or self.dtype or self.held)

    @property
    def arguments(self) -> tuple[list[int], list[str], list[int], list[str]]:
        """Those of ``ops.reshard`` after the tensor."""
        return self.forward, self.forward_groups, self.backward, self.backward_groups

    @property
    def dtypes(self) -> dict[str, Any]:
        """Its keywords."""
        given = {"dtype": self.dtype, "reduce_dtype": self.reduce_dtype}
        return {name: dtype for name, dtype in given.items() if dtype is not None}


# In the meta of reshards: whether a step makes their value once, and the bytes of its gradient if
# that is sent.
HELD = "held"
SENT_BYTES = "sent_bytes"


@dataclass(frozen=True)
class _Reshard:
    """Of a parameter, in the graph."""

    result: fx.Node
    parameter: fx.Node
    slot: int
    programs: Programs

    @property
    def bucket(self) -> tuple[str, torch.dtype, bool] | None:
        """What those have in common that are gathered together; None: it is by itself."""
        if self.programs.gathered_dim is None:
            return None
        (group,) = self.programs.forward_groups
        return group, self.programs.value_dtype, self.programs.held


class Overlap:
    """Writes the reshards of some parameters into a graph.

    ::

        overlap = Overlap(graph, values_ahead, bucket_bytes, shard_bytes)
        nodes |= overlap.begin(parameters, programs)  # at the start of the graph
        value = overlap.reshard(node, edge, programs)
        overlap.finish()                        # the graph is whole

    Programs of gradients begin where the gradients are made, some of them together, and are
    awaited at the end of backward: sums ``bucket_bytes`` at once, and where each rank gets a part
    of a sum ``shard_bytes``. Small parameters that are used one after the other are gathered
    together, ``shard_bytes`` at once, where the first of them is used. With
    ``values_ahead`` that begins, as the programs of other values do, after what was begun before
    it has ended, so that one is on its way while its predecessor is used.
    """

    def __init__(
        self, graph: fx.Graph, values_ahead: bool, bucket_bytes: int, shard_bytes: int
    ) -> None:
        self._graph = graph
        self._values_ahead = values_ahead
        self._bucket_bytes = bucket_bytes
        self._shard_bytes = shard_bytes
        self._queue: fx.Node | None = None
        self._slots: dict[_C.SpaceEdgeId, int] = {}
        self._unchanged: dict[_C.SpaceEdgeId, fx.Node] = {}
        self._reshards: list[_Reshard] = []  # those that gather, in the order of forward

    def begin(
        self,
        parameters: Mapping[_C.SpaceEdgeId, fx.Node],
        programs: Mapping[_C.SpaceEdgeId, Programs],
    ) -> dict[_C.SpaceEdgeId, fx.Node]:
        """Takes parameters and what is done to them by edge, at the start of the graph.
        ``reshard`` gets what is returned in their place."""
        if not parameters:
            return {}
        self._queue = self._graph.call_function(
            parameter_queue, (self._bucket_bytes, self._shard_bytes)
        )
        self._slots = {edge: slot for slot, edge in enumerate(parameters)}
        slots = list(self._slots.values())
        awaited = self._graph.call_function(
            torch.ops.tensoropt.await_gradients.default,
            (list(parameters.values()), self._queue, slots),
        )
        nodes = {
            edge: self._graph.call_function(operator.getitem, (awaited, slot))
            for edge, slot in self._slots.items()
        }
        alike: dict[Any, list[_C.SpaceEdgeId]] = {}
        for edge in parameters:
            if programs[edge].changes_gradient_alone:
                alike.setdefault(_of_gradient(programs[edge]), []).append(edge)
        for edges in alike.values():
            self._reshard_gradients(edges, nodes, programs[edges[0]])
        return nodes

    def _reshard_gradients(
        self,
        edges: Sequence[_C.SpaceEdgeId],
        nodes: Mapping[_C.SpaceEdgeId, fx.Node],
        programs: Programs,
    ) -> None:
        """One call for all parameters that have this program."""
        values = self._graph.call_function(
            torch.ops.tensoropt.reshard_gradients.default,
            (
                [nodes[edge] for edge in edges],
                programs.backward,
                programs.backward_groups,
                self._queue,
                [self._slots[edge] for edge in edges],
            ),
            programs.dtypes,
        )
        for index, edge in enumerate(edges):
            self._unchanged[edge] = self._graph.call_function(operator.getitem, (values, index))

    def __contains__(self, edge: _C.SpaceEdgeId) -> bool:
        """Whether the edge is one of those that began."""
        return edge in self._slots

    def reshard(self, node: fx.Node, edge: _C.SpaceEdgeId, programs: Programs) -> fx.Node:
        """What ``ops.reshard`` would give, of the parameter of an edge."""
        slot = self._slots[edge]
        result = self._unchanged.get(edge)
        if result is None:
            result = self._graph.call_function(
                torch.ops.tensoropt.reshard_parameter.default,
                (node, *programs.arguments, self._queue, slot),
                programs.dtypes,
            )
        result.meta[HELD] = programs.held
        result.meta[SENT_BYTES] = programs.value_bytes if programs.backward_groups else 0.0
        if programs.forward_groups:
            self._reshards.append(_Reshard(result, node, slot, programs))
        return result

    def finish(self) -> None:
        """Writes where values begin."""
        before: fx.Node | None = None
        for number, together in enumerate(_buckets(self._reshards, self._shard_bytes)):
            first = together[0].result
            ahead = self._values_ahead and before is not None
            if len(together) > 1 or ahead:
                with (
                    self._graph.inserting_after(before)
                    if ahead
                    else self._graph.inserting_before(first)
                ):
                    self._begin_values(together)
            for member in together:
                _replay_in_bucket(member, number)
            before = first

    def _begin_values(self, together: list[_Reshard]) -> None:
        first = together[0]
        casts = any(member.programs.dtype is not None for member in together)
        dtypes: dict[str, Any] = {"dtype": first.programs.value_dtype} if casts else {}
        if len(together) == 1:
            target = torch.ops.tensoropt.begin_value.default
            programs = first.programs.forward, first.programs.forward_groups
            self._graph.call_function(
                target, (first.parameter, *programs, self._queue, first.slot), dtypes
            )
            return
        (group,) = first.programs.forward_groups
        self._graph.call_function(
            torch.ops.tensoropt.begin_gathers.default,
            (
                [member.parameter for member in together],
                [member.programs.gathered_dim for member in together],
                group,
                self._queue,
                [member.slot for member in together],
            ),
            dtypes,
        )


def _of_gradient(programs: Programs) -> tuple[Any, ...]:
    """What those have in common whose gradients one call reshards."""
    groups = tuple(programs.backward_groups)
    return tuple(programs.backward), groups, programs.reduce_dtype


def _replay_in_bucket(reshard: _Reshard, number: int) -> None:
    """Backward makes it again together with the others of its bucket."""
    for user in tuple(reshard.result.users):
        if user.target is reuse.keep_before and user.args[0] is reshard.result:
            place = {"bucket": number, "gathered_dim": reshard.programs.gathered_dim}
            user.kwargs = {**user.kwargs, **place}


def _buckets(reshards: list[_Reshard], shard_bytes: int) -> list[list[_Reshard]]:
    """Those that begin together, in the order of the first of each; a bucket is full when it
    has so many bytes."""
    buckets: list[list[_Reshard]] = []
    open_ones: dict[tuple[str, torch.dtype, bool], list[_Reshard]] = {}
    for reshard in reshards:
        key = reshard.bucket
        together = None if key is None else open_ones.get(key)
        if together is None:
            together = []
            buckets.append(together)
            if key is not None:
                open_ones[key] = together
        together.append(reshard)
        full = sum(member.programs.value_bytes for member in together) >= shard_bytes
        if key is not None and full:
            del open_ones[key]
    return buckets


def slot_of(node: fx.Node) -> int:
    """The one that a call for a parameter names."""
    slot = node.args[-1]
    assert isinstance(slot, int)
    return slot


def slots_begun(node: fx.Node) -> set[int]:
    """Those whose values a call begins."""
    if node.target is torch.ops.tensoropt.begin_value.default:
        return {slot_of(node)}
    if node.target is torch.ops.tensoropt.begin_gathers.default:
        return set(node.args[-1])  # type: ignore[arg-type]
    return set()
