"""Reshards of parameters that run while the rank computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tensoropt_torch.runtime.parameter_queue import parameter_queue


@dataclass(frozen=True)
class Programs:
    """The reshard of an edge on one rank: encoded programs and names of process groups, of
    the value in forward and of its gradient in backward; and what is kept of it. The value is
    cast to ``dtype`` before, the gradient to ``reduce_dtype``, which may be ``is_bucketed``:
    summed together with others."""

    forward: list[int]
    forward_groups: list[str]
    backward: list[int]
    backward_groups: list[str]
    kept: str
    dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    is_bucketed: bool = False

    @property
    def is_reshard(self) -> bool:
        """Whether the layout of the value or of its gradient changes."""
        return bool(self.forward or self.backward)

    def waits_in_queue(self, overlap: bool) -> bool:
        """Whether the reshard of a parameter is written by ``Overlap``."""
        communicates = bool(self.forward_groups or self.backward_groups)
        return self.is_bucketed or (overlap and communicates)

    @property
    def arguments(self) -> tuple[list[int], list[str], list[int], list[str]]:
        """Those of ``ops.reshard`` after the tensor."""
        return self.forward, self.forward_groups, self.backward, self.backward_groups

    @property
    def dtypes(self) -> dict[str, Any]:
        """Its keywords."""
        given = {"dtype": self.dtype, "reduce_dtype": self.reduce_dtype}
        return {name: dtype for name, dtype in given.items() if dtype is not None}


class Overlap:
    """Writes the reshards of some parameters into a graph.

    Programs of gradients begin where the gradients are made, some of them together, and are
    awaited at the end of backward. With ``values_ahead`` the program of a value begins after
    the one before it in forward has ended, so that one is on its way while its predecessor is
    used.
    """

    def __init__(self, graph: fx.Graph, values_ahead: bool, bucket_bytes: int) -> None:
        self._graph = graph
        self._values_ahead = values_ahead
        self._bucket_bytes = bucket_bytes
        self._queue: fx.Node | None = None
        self._slots: dict[int, int] = {}
        self._last: fx.Node | None = None  # the last reshard with a collective in forward

    def begin(self, parameters: Mapping[int, fx.Node]) -> dict[int, fx.Node]:
        """Takes parameters by edge, at the start of the graph. ``reshard`` gets what is
        returned in their place."""
        if not parameters:
            return {}
        self._queue = self._graph.call_function(parameter_queue, (self._bucket_bytes,))
        self._slots = {edge: slot for slot, edge in enumerate(parameters)}
        return {
            edge: self._graph.call_function(
                torch.ops.tensoropt.await_gradient.default,
                (node, self._queue, self._slots[edge]),
            )
            for edge, node in parameters.items()
        }

    def __contains__(self, edge: int) -> bool:
        """Whether the edge is one of those that began."""
        return edge in self._slots

    def reshard(self, node: fx.Node, edge: int, programs: Programs) -> fx.Node:
        """What ``ops.reshard`` would give, of the parameter of an edge."""
        place = (self._queue, self._slots[edge])
        if self._values_ahead and programs.forward_groups and self._last is not None:
            with self._graph.inserting_after(self._last):
                self._graph.call_function(
                    torch.ops.tensoropt.begin_value.default,
                    (node, programs.forward, programs.forward_groups, *place),
                    {} if programs.dtype is None else {"dtype": programs.dtype},
                )
        result = self._graph.call_function(
            torch.ops.tensoropt.reshard_parameter.default,
            (node, *programs.arguments, *place),
            programs.dtypes,
        )
        if programs.forward_groups:
            self._last = result
        return result
