"""What the ranks add up where forward ends, in one collective for each group: losses, how many
look-ups are out of range, and buffers that each rank has changed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.library import OPS

# Means of losses over ranks, which otherwise have a collective of their own.
_MEANS = frozenset(
    {
        OPS.cross_entropy_sharded.default,
        OPS.cross_entropy_vocab.default,
        OPS.nll_loss_sharded.default,
    }
)
# Otherwise a sum may need the range of the dtype, or more digits than a mean.
_EXACT = (torch.float32, torch.float64)

Buffers = tuple[Sequence[fx.Node], Sequence[int], Sequence[int], Sequence[int]]
NO_BUFFERS: Buffers = ((), (), (), ())
_ReshardArguments = tuple[fx.Node, list[int], list[str], list[int], list[str]]


@dataclass
class _Group:
    """What one group adds up."""

    shares: list[fx.Node] = field(default_factory=list)
    then: list[Callable[[list[fx.Node]], None]] = field(default_factory=list)
    buffers: Buffers = NO_BUFFERS


class ForwardSums:
    """Writes them into a graph that is written but for its end.

    ::

        sums.add_loss(output, value)            # of each output
        sums.add(group, shares, then)           # then(sums) writes what reads them
        sums.average(group, buffers)
        sums.write()
        output = sums.outputs.get(output, output)

    A loss is an output that an all-reduce makes of a scalar, or a mean over ranks; nothing else
    in the graph reads it.

    Attributes:
        outputs: what is given in place of losses.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._groups: dict[str, _Group] = {}
        self.outputs: dict[fx.Node, fx.Node] = {}

    def add(
        self, group: str, shares: Sequence[fx.Node], then: Callable[[list[fx.Node]], None]
    ) -> None:
        """Scalars of the rank; the sums have no gradients."""
        found = self._groups.setdefault(group, _Group())
        begin = len(found.shares)
        found.shares += shares
        found.then.append(lambda sums: then(sums[begin : begin + len(shares)]))

    def average(self, group: str, buffers: Buffers) -> None:
        """Buffers, once: the nodes, and what ``csrc/runtime/forward_sums_op.cc`` takes of each."""
        self._groups.setdefault(group, _Group()).buffers = buffers

    def add_loss(self, output: fx.Node, value: torch.Tensor) -> None:
        """An output, whose value in the captured graph is ``value``, if it is such a loss."""
        if value.dim() or value.dtype not in _EXACT or output.users:
            return
        if output.target is OPS.reshard.default:
            self._add_sum(output)
        elif output.target in _MEANS:
            self._add_mean(output, value.dtype)

    def write(self) -> None:
        """All that have been added."""
        for group, found in self._groups.items():
            sums = write_sums(self._graph, group, found.shares, found.buffers)
            for then in found.then:
                then(sums)

    def _add_sum(self, output: fx.Node) -> None:
        share, forward, groups, backward, _ = cast("_ReshardArguments", output.args)
        if ops.is_all_reduce(forward) and not backward and not output.kwargs:
            self._graph.erase_node(output)

            def give(sums: list[fx.Node]) -> None:
                self.outputs[output] = self._call(OPS.sum_of.default, sums[0], share, groups[0])

            self.add(groups[0], [share], give)

    def _add_mean(self, output: fx.Node, dtype: torch.dtype) -> None:
        arguments = _named_arguments(output)
        group = arguments["count_group"]
        if not group or arguments.get("reduction", ops.MEAN) != ops.MEAN:
            return
        target, weight = arguments["target"], arguments.get("weight")
        divisor = self._call(OPS.valid_divisor.default, target, weight, arguments["ignore_index"])
        if output.target is OPS.nll_loss_sharded.default:
            operands = (arguments[name] for name in ("log_probs", "target", "weight"))
            output.target = torch.ops.aten.nll_loss_nd.default
            output.args = (*operands, ops.SUM, arguments["ignore_index"])
        else:
            output.args = (*(arguments | {"reduction": ops.SUM, "count_group": ""}).values(),)

        own = self._cast(output, torch.float64)

        def divide(sums: list[fx.Node]) -> None:
            whole = self._call(OPS.sum_of.default, sums[0], own, group)
            mean = self._call(torch.ops.aten.div.Tensor, whole, sums[1])
            self.outputs[output] = self._cast(mean, dtype)

        self.add(group, [own, divisor], divide)

    def _cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        target = torch.ops.aten._to_copy.default
        return self._graph.call_function(target, (node,), {"dtype": dtype})

    def _call(self, target: Any, *args: Any) -> fx.Node:
        return self._graph.call_function(target, args)


def write_sums(
    graph: fx.Graph, group: str, shares: Sequence[fx.Node], buffers: Buffers
) -> list[fx.Node]:
    """The sums of the shares; the buffers are changed."""
    arguments: Any = ([*shares], *map(list, buffers), group)
    sums = graph.call_function(OPS.forward_sums.default, arguments)
    return [graph.call_function(getitem, (sums, index)) for index in range(len(shares))]


def _named_arguments(node: fx.Node) -> dict[str, Any]:
    """In the order of the schema."""
    assert isinstance(node.target, OpOverload) and not node.kwargs
    names: Sequence[str] = [argument.name for argument in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=True))
