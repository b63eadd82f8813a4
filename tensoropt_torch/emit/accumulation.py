"""Passes of backward whose gradients the ranks do not reduce yet.

::

    for micro_batch in micro_batches[:-1]:
        with parallel.no_sync():
            parallel(*micro_batch).backward()
    parallel(*micro_batches[-1]).backward()  # reduces the sums of all passes

What such a pass leaves in ``.grad`` is the gradient as the parameter's consumer makes it:
a ``DTensor`` in the layout that it has there, mostly with pending sums, instead of that of the
parameter. So ``.grad`` is a right gradient at any time, whatever is done with it: set to None
or to zero, scaled, read, or given to an optimizer. Communication is all that is put off.

A pass that reduces adds what is kept before it runs the backward program of the
parameter. Neither the graph of a rank nor its operators know of this: passes that keep
or find something run a copy of the graph that hooks on where these programs begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn
from torch.distributed.tensor import DTensor, Placement

from tensoropt_torch.frontend import Blocks
from tensoropt_torch.parameters.local_parts import as_whole, is_executed, is_for_grad
from tensoropt_torch.runtime.lost_ranks import waiting
from tensoropt_torch.values.parts import redistributed
from tensoropt_torch.values.placements import placements_of

Gradients = tuple[torch.Tensor | None, ...]

# In the meta of nodes of a rank's graph, and there the encoded program of the gradient with its
# groups.
GRADIENT_EDGE = "gradient_edge"
GRADIENT_PROGRAM = "gradient_program"


class GradientAccumulation:
    """What a ``ParallelModule`` keeps for it: copies of the graphs that it has run."""

    def __init__(self) -> None:
        self._hooked: WeakKeyDictionary[fx.GraphModule, fx.GraphModule] = WeakKeyDictionary()
        self._keeps = False  # gradients may be kept

    def run(
        self, module: nn.Module, rank_graph: fx.GraphModule, inputs: Sequence[Any], reduces: bool
    ) -> Any:
        """The outputs of a graph of the module's parameters. With ``reduces`` the backward
        that belongs to it leaves gradients in the layouts of their parameters."""
        if not torch.is_grad_enabled() or (reduces and not self._finds_kept(module)):
            return rank_graph.forward(*inputs)
        self._keeps = True
        if rank_graph not in self._hooked:
            self._hooked[rank_graph] = with_hooks(rank_graph)
        return self._hooked[rank_graph].forward(*inputs, module, reduces)

    def _finds_kept(self, module: nn.Module) -> bool:
        self._keeps = self._keeps and any(is_kept(p) for p in module.parameters())
        return self._keeps


def is_kept(parameter: torch.Tensor) -> bool:
    """Whether the gradient is in another layout than its parameter."""
    return (
        isinstance(parameter, DTensor)
        and isinstance(parameter.grad, DTensor)
        and parameter.grad.placements != parameter.placements
    )


def with_hooks(rank_graph: fx.GraphModule) -> fx.GraphModule:
    """A copy that takes, after all inputs, the module and whether gradients are reduced."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    extra: tuple[fx.Node, ...] = ()
    for node in rank_graph.graph.nodes:
        if node.op != "placeholder" and not extra:
            extra = graph.placeholder("module"), graph.placeholder("reduces")
        copies[node] = graph.node_copy(node, copies.__getitem__)
        edge = node.meta.get(GRADIENT_EDGE)
        if edge is not None:
            graph.call_function(
                _hook, (copies[node], edge.parameter, edge.layout, _numbers(edge.blocks), *extra)
            )
    graph.lint()
    return fx.GraphModule(rank_graph, graph, "AccumulatingGraph")


def _numbers(blocks: Blocks | None) -> tuple[int, int] | None:
    """As an argument in a graph."""
    return None if blocks is None else (blocks.dim, blocks.count)


def _hook(
    value: torch.Tensor,
    name: str,
    layout: str,
    numbers: tuple[int, int] | None,
    module: nn.Module,
    reduces: bool,
) -> None:
    """Of what a reshard made of a parameter."""
    if value.grad_fn is None:
        return
    parameter = module.get_parameter(name)
    blocks = None if numbers is None else Blocks(*numbers)
    assert isinstance(parameter, DTensor)
    placements = placements_of(layout, blocks, parameter.device_mesh.shape)
    accumulate = torch.autograd.graph.get_gradient_edge(parameter).node

    def before_program(gradients: Gradients) -> Gradients | None:
        (gradient,) = gradients
        if gradient is None or not is_for_grad(gradient, parameter, accumulate):
            return None
        with torch.no_grad():
            if reduces:
                return (_with_kept(parameter, gradient, placements),)
            mine = gradient if blocks is None else gradient.reshape(blocks.together(gradient.shape))
            return (None,) if _keep(parameter, mine, placements) else None

    def before_accumulation(gradients: Gradients) -> None:
        if gradients[0] is not None and is_kept(parameter):
            reduce_kept(parameter)

    value.grad_fn.register_prehook(before_program)
    accumulate.register_prehook(before_accumulation)


def reduce_found(parameter: torch.Tensor, accumulate: Any) -> None:
    """What earlier passes have kept, if this backward adds to it; ``accumulate`` is the node that
    would."""
    if is_kept(parameter) and is_executed(accumulate):
        reduce_kept(parameter)


def reduce_kept(parameter: torch.Tensor) -> None:
    """What is kept, by itself."""
    with torch.no_grad(), waiting():
        assert isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor)
        parameter.grad = redistributed(parameter.grad, parameter.placements)


def _keep(
    parameter: nn.Parameter, gradient: torch.Tensor, placements: tuple[Placement, ...]
) -> bool:
    """Adds to what is kept, in the parameter's dtype; whether the gradient needs no program
    any more. What was reduced before, and not set to None, is no place for it."""
    kept = parameter.grad
    if kept is None:
        assert isinstance(parameter, DTensor)
        mine = gradient.to(parameter.dtype, memory_format=torch.contiguous_format, copy=True)
        parameter.grad = as_whole(mine, parameter, placements)
        return True
    if not _lies(kept, placements):
        return False
    kept.to_local().add_(gradient)
    return True


def _with_kept(
    parameter: nn.Parameter, gradient: torch.Tensor, placements: tuple[Placement, ...]
) -> torch.Tensor | None:
    """The gradient with what was kept of earlier passes, which ``.grad`` loses. None if that
    is of another dtype, which a hook may not change: then ``.grad`` has got all, reduced."""
    kept = parameter.grad
    if not _lies(kept, placements):
        return gradient
    total: torch.Tensor = kept.to_local().view_as(gradient).add_(gradient)
    if total.dtype != gradient.dtype:
        reduce_kept(parameter)
        return None
    parameter.grad = None
    return total


def _lies(kept: torch.Tensor | None, placements: tuple[Placement, ...]) -> TypeGuard[DTensor]:
    return isinstance(kept, DTensor) and kept.placements == placements
