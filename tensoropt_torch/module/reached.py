"""Parameters that a loss does not depend on get no gradient, where steps are compiled, either.

A compiled backward gives zeros for whatever it is not asked for, and zeros are not nothing: weight
decay and momentum change a parameter then. So what each output depends on is read from the
captured graph, and what backward began with says which gradients there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from tensoropt_torch.frontend import CapturedModel

_DETACHED = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)


class Reach:
    """The trained sources that outputs depend on, for all steps of a graph.

    ::

        forward = reach.of_forward()
        outputs = graph(*forward.passed(values))
        forward.watch(outputs)
    """

    def __init__(self, captured: CapturedModel) -> None:
        graph = captured.graph_module.graph
        leaves = graph.output_node().args[0]
        assert isinstance(leaves, Sequence)
        numbers = {
            source.placeholder.name: number
            for number, source in enumerate(captured.sources)
            if source.kind == "parameter"
        }
        reached = _reached(graph, numbers)
        bits = [reached[leaf] if isinstance(leaf, fx.Node) else 0 for leaf in leaves]
        self.by_output = tuple(
            frozenset(number for number in numbers.values() if found >> number & 1)
            for found in bits
        )
        self._numbers = {captured.sources[n].names[0]: n for n in numbers.values()}
        differentiable = [found for found in self.by_output if found]
        everywhere = frozenset.intersection(*differentiable) if differentiable else frozenset()
        # The sources that some outputs depend on, and others do not.
        self.partly = tuple(sorted(frozenset().union(*differentiable) - everywhere))

    def is_reached(self, parameter: str, output: int) -> bool:
        """Whether an output depends on a parameter, by the first name of its source, if it has
        one."""
        return self._numbers.get(parameter) in self.by_output[output]

    def of_forward(self) -> ReachedGradients | None:
        """None: all outputs depend on the same sources, or nobody wants gradients."""
        return ReachedGradients(self) if self.partly and torch.is_grad_enabled() else None


class ReachedGradients:
    """The gradients that reach the sources of one forward."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._outputs: set[int] = set()  # that gradients have come to

    def passed(self, values: Sequence[Any]) -> list[Any]:
        """The values of all sources, whose gradients are let through if they are some."""
        found = list(values)
        trained = [n for n in self._reach.partly if found[n].requires_grad]
        if trained:
            passed = _Passed.apply(self, trained, *(found[n] for n in trained))  # type: ignore[no-untyped-call]
            for number, value in zip(trained, passed, strict=True):
                found[number] = value
        return found

    def watch(self, outputs: Sequence[Any]) -> None:
        """Sees to which outputs gradients come."""
        places: dict[Any, list[tuple[int, int]]] = {}
        for index, output in enumerate(outputs):
            if isinstance(output, torch.Tensor) and output.grad_fn is not None:
                places.setdefault(output.grad_fn, []).append((output.output_nr, index))
        for node, own in places.items():
            node.register_prehook(lambda gradients, own=own: self._look(gradients, own))

    def _look(
        self, gradients: Sequence[torch.Tensor | None], own: Sequence[tuple[int, int]]
    ) -> None:
        self._outputs.update(index for place, index in own if gradients[place] is not None)

    def has(self, parameter: str) -> bool:
        """Whether there is a gradient for a parameter in the backward that runs, by the first name
        of its source."""
        return any(self._reach.is_reached(parameter, index) for index in self._outputs)

    def take(self) -> frozenset[int]:
        """The sources that have gradients in the backward that ends."""
        outputs, self._outputs = self._outputs, set()
        return frozenset().union(*(self._reach.by_output[index] for index in outputs))


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, reached: ReachedGradients, numbers: Sequence[int], *parts: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.reached, ctx.numbers = reached, numbers
        return tuple(part.view_as(part) for part in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        found = ctx.reached.take()
        own = zip(ctx.numbers, gradients, strict=True)
        return None, None, *(gradient if number in found else None for number, gradient in own)


def _reached(graph: fx.Graph, numbers: Mapping[str, int]) -> Mapping[fx.Node, int]:
    """By node: the sources to which its gradient goes, as bits by their numbers."""
    found: dict[fx.Node, int] = {}
    for node in graph.nodes:
        own = 0
        if node.op == "placeholder":
            own = 1 << numbers[node.name] if node.name in numbers else 0
        elif node.target not in _DETACHED and _may_have_gradients(node.meta.get("val")):
            for operand in node.all_input_nodes:
                own |= found[operand]
        found[node] = own
    return found


def _may_have_gradients(value: Any) -> bool:
    leaves = torch.utils._pytree.tree_leaves(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return not leaves or any(t.is_floating_point() or t.is_complex() for t in tensors)
