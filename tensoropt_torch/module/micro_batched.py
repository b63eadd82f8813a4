"""A variant whose step is several micro-batches: forward and backward of each, one after the
other, so that what one keeps for backward is gone before the next begins.

The gradients are there when the call returns, and wait: ``backward`` of the loss multiplies
them with the gradient of the loss and gives them to the parameters. So whoever calls it, once,
gets what a loss of the whole batch gives, hooks of parameters, ``torch.autograd.grad`` and
scaled losses included.

Of the reshards of parameters and of their gradients, a plan says which run in every
micro-batch. Values that are **held** are resharded by a graph of their own at the beginning.
Gradients that are **summed** are added up as the consumer of the parameter makes them, until
the last micro-batch reduces them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.accumulation import GRADIENT_EDGE, GRADIENT_PROGRAM, reduce_found
from tensoropt_torch.emit.edges import GradientEdge
from tensoropt_torch.emit.overlap import HELD, slot_of, slots_begun
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.micro_batches import Join, MicroBatching
from tensoropt_torch.module.variant import RunGraph, Variant
from tensoropt_torch.parameters.local_parts import accumulated, as_whole, local_tensor, own_gradient
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime import reuse
from tensoropt_torch.runtime.ops import reshard

Gradients = tuple[torch.Tensor | None, ...]

# Seeds of the micro-batches of a step are so far apart.
SEED_STRIDE = 0x9E3779B97F4A7C15
SEEDS = 2**62


@dataclass(frozen=True)
class Gather:
    """How a rank's share of an input becomes the whole: an encoded program, and its groups."""

    steps: Sequence[int]
    groups: Sequence[str]


class MicroBatchedVariant(Variant):
    """A variant of a graph of a micro-batch; arguments as of ``Variant``.

    ``gathers``: of the sources that ``totals`` takes and of which each rank has a share.
    """

    def __init__(
        self,
        plan: Plan,
        captured: CapturedModel,
        graph: fx.GraphModule,
        root: nn.Module,
        tables: Mapping[str, torch.Tensor],
        uses_seeds: bool,
        views: Mapping[str, Sequence[int]],
        gathers: Mapping[int, Gather],
    ) -> None:
        super().__init__(plan, captured, graph, root, tables, uses_seeds, views)
        assert captured.micro_batching is not None
        self._micro: MicroBatching = captured.micro_batching
        self._gathers = gathers
        totals = self._micro.totals
        self._totals_graph = None if totals is None else made_on(totals, _device_of(root))
        self._trained = [
            (number, place)
            for number, (source, place) in enumerate(
                zip(captured.sources, self._places, strict=True)
            )
            if source.kind == "parameter" and place is not None
        ]
        self._head, self._body = split_held(graph)

    def run(
        self, inputs: Sequence[Any], seed: int, run_graph: RunGraph, numbers: tuple[Any, ...] = ()
    ) -> Any:
        """As ``Variant.run``, of the whole batch; ``run_graph`` is not called, since gradients
        are reduced within the call."""
        parameters = {
            number: place[0][place[1]]
            for number, place in self._trained
            if place[0][place[1]].requires_grad  # type: ignore[union-attr]
        }
        if torch.is_grad_enabled() and parameters:
            outputs = self._step(inputs, seed, parameters)  # type: ignore[arg-type]
        else:
            outputs = self._forward(inputs, seed)
        return pytree.tree_unflatten(outputs, self.captured.out_spec)

    def _forward(self, inputs: Sequence[Any], seed: int) -> list[Any]:
        """Without gradients."""
        outputs = _Outputs(self._micro.joins)
        with torch.no_grad():
            for values in self._micro_batches(self._values(inputs), seed):
                outputs.add(self.graph.forward(*values))
        return outputs.joined()

    def _step(
        self, inputs: Sequence[Any], seed: int, parameters: Mapping[int, torch.Tensor]
    ) -> list[Any]:
        """With gradients, which the outputs hold."""
        values = self._values(inputs)
        local = LocalGradients()
        leaves = {}
        for number in parameters:
            name = self.captured.sources[number].names[0]
            values[number] = leaves[name] = values[number].requires_grad_()
        sums = SummedGradients(leaves, local)
        outputs = _Outputs(self._micro.joins)
        with torch.no_grad():
            held = () if self._head is None else self._head.forward(*values, 0)
        for number, batch in enumerate(self._micro_batches(values, seed)):
            sums.is_last = number == self._micro.count - 1
            with reuse.ReuseRegistry(self.plan.settings.overlap, self.name_of):
                made = self._body.forward(*local.watched(batch, leaves), *held, sums)
            loss = made[self._micro.loss]
            outputs.add(made)
            del made, batch
            torch.autograd.backward(loss)
            del loss
        del held, values
        sums.finish()
        gradients = [
            None if name not in local.found else _gradient_of(parameter, local.found[name])
            for name, parameter in zip(leaves, parameters.values(), strict=True)
        ]
        return self._delivered(outputs.joined(), list(parameters.values()), gradients)

    def _delivered(
        self,
        outputs: list[Any],
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor | None],
    ) -> list[Any]:
        places = [
            index
            for index, output in enumerate(outputs)
            if isinstance(output, torch.Tensor) and output.is_floating_point()
        ]
        tensors = [outputs[index] for index in places]
        loss = places.index(self._micro.loss)
        waiting = _Waiting(loss, gradients)
        found = _Delivery.apply(waiting, tensors, *parameters)  # type: ignore[no-untyped-call]
        for index, tensor in zip(places, found, strict=True):
            outputs[index] = tensor
        return outputs

    def _values(self, inputs: Sequence[Any]) -> list[Any]:
        """Of all sources; inputs are those of the whole batch."""
        rest = iter(inputs)
        values = []
        places = zip(self.captured.sources, self._places, self._views, strict=True)
        for source, place, view in places:
            if source.kind == "total":
                continue
            if place is None:
                values.append(next(rest))
            else:
                tensor = place[0][place[1]]
                assert tensor is not None
                local = local_tensor(tensor).detach()
                values.append(local if view is None else local.view(view))
        return [*values, *self._totals(values)]

    def _totals(self, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        if self._totals_graph is None:
            return ()
        taken = []
        with torch.no_grad():
            for number in self._micro.total_sources:
                value = values[number]
                gather = self._gathers.get(number)
                if gather is not None:
                    value = reshard(value, gather.steps, gather.groups)
                taken.append(value)
            found: tuple[torch.Tensor, ...] = self._totals_graph.forward(*taken)
        return found

    def _micro_batches(self, values: Sequence[Any], seed: int) -> Iterator[tuple[Any, ...]]:
        """What the graph takes, of each."""
        split = iter(self._micro.split)
        is_split = [
            source.kind in ("input", "literal") and next(split) for source in self.captured.sources
        ]
        for number in range(self._micro.count):
            batch = [
                value.chunk(self._micro.count)[number] if cut else value
                for value, cut in zip(values, is_split, strict=True)
            ]
            yield (*batch, (seed + number * SEED_STRIDE) % SEEDS)


def variant_of(
    part: RankPart,
    graph: fx.GraphModule,
    root: nn.Module,
    tables: Mapping[str, torch.Tensor],
    uses_seeds: bool,
    group_name: Callable[[int], str],
) -> Variant:
    """The variant that runs the graph of a rank's part."""
    run = part.plan, part.captured, graph, root, tables, uses_seeds, part.views
    if part.captured.micro_batching is None:
        return Variant(*run)
    gathers = {
        number: Gather(steps, [group_name(axes) for axes in sets])
        for number, (steps, sets) in part.gathers.items()
    }
    return MicroBatchedVariant(*run, gathers)


def _gradient_of(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    if not isinstance(parameter, DTensor):
        return local
    return as_whole(local.view(parameter._local_tensor.shape), parameter)


# --- Outputs and gradients ------------------------------------------------------------------


class _Outputs:
    """Outputs of micro-batches, which become those of the batch."""

    def __init__(self, joins: Sequence[Join]) -> None:
        self._joins = joins
        self._parts: list[list[Any]] = [[] for _ in joins]

    def add(self, outputs: Sequence[Any]) -> None:
        """Of the next micro-batch."""
        for parts, join, output in zip(self._parts, self._joins, outputs, strict=True):
            if isinstance(output, torch.Tensor):
                output = output.detach()
            if join == "sum" and parts:
                parts[0] = parts[0] + output
            elif not (join == "same" and parts):
                parts.append(output)

    def joined(self) -> list[Any]:
        """Of all of them."""
        return [
            torch.cat(parts, join) if isinstance(join, int) else parts[0]
            for parts, join in zip(self._parts, self._joins, strict=True)
        ]


@dataclass
class _Waiting:
    """Gradients of the loss, which is one of the outputs, by parameter."""

    loss: int
    gradients: list[torch.Tensor | None] | None

    def take(self) -> list[torch.Tensor | None]:
        """Once."""
        if self.gradients is None:
            raise TensorOptError(
                "backward runs a second time for one forward; the gradients of its micro-batches "
                "were made once: call the module again, or plan with max_micro_batches=1"
            )
        gradients, self.gradients = self.gradients, None
        return gradients


class _Delivery(torch.autograd.Function):
    """The outputs, whose backward gives the gradients that wait to the parameters.

    They are no inputs of it, and so no views, which may not be changed in place
    (``loss *= scale``).
    """

    @staticmethod
    def forward(
        ctx: Any, waiting: _Waiting, outputs: Sequence[torch.Tensor], *parameters: torch.Tensor
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.waiting = waiting
        ctx.parameters = parameters
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor | None) -> Any:
        factor = outer[ctx.waiting.loss]
        if any(g is not None for i, g in enumerate(outer) if i != ctx.waiting.loss):
            raise TensorOptError(
                "with micro-batches only the loss that the model returns has gradients, but "
                "something was computed with another output and differentiated: let the model "
                "(or loss_fn) compute it as a part of its loss, or plan with max_micro_batches=1"
            )
        if factor is None:
            return (None,) * len(ctx.needs_input_grad)
        if torch.is_grad_enabled():
            raise TensorOptError(
                "with micro-batches gradients are made in forward and cannot be differentiated "
                "(create_graph=True); plan with max_micro_batches=1"
            )
        gradients = ctx.waiting.take()
        own = [local_tensor(g) for g in gradients if g is not None]
        torch._foreach_mul_(own, factor)
        for parameter, (accumulate, _) in zip(ctx.parameters, ctx.next_functions, strict=True):
            reduce_found(parameter, accumulate)
        return (None, None, *accumulated(ctx, ctx.parameters, gradients))


class LocalGradients:
    """Gradients of what the rank has of parameters, by name, added up over micro-batches. Not in
    ``grad``, where autograd adds tensors without memory, as simulations have them, otherwise."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}

    def add(self, name: str, gradient: torch.Tensor, strides: Sequence[int]) -> None:
        """One more of a parameter with these strides."""
        kept = self.found.get(name)
        if kept is None:
            self.found[name] = own_gradient(gradient, strides)
        else:
            kept.add_(gradient)

    def watched(self, values: Sequence[Any], leaves: Mapping[str, torch.Tensor]) -> Iterator[Any]:
        """The values, with those of leaves so that their gradients come here."""
        names = {id(leaf): name for name, leaf in leaves.items()}
        for value in values:
            name = names.get(id(value))
            yield value if name is None else _Watched.apply(value, name, self)  # type: ignore[no-untyped-call]


class _Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, name: str, found: LocalGradients) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.name, ctx.found, ctx.strides = name, found, leaf.stride()
        return leaf.view_as(leaf)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[None, None, None]:
        if gradient is not None:
            ctx.found.add(ctx.name, gradient, ctx.strides)
        return None, None, None


class SummedGradients:
    """Gradients of parameters as their consumers make them, added up over micro-batches.

    Args:
        leaves: the parameters of this rank by name.
        reduced: gets what is reduced after the last micro-batch.
    """

    def __init__(self, leaves: Mapping[str, torch.Tensor], reduced: LocalGradients) -> None:
        self.is_last = False
        self._leaves = leaves
        self._reduced = reduced
        self._sums: dict[str, torch.Tensor] = {}
        self._late: dict[str, tuple[Sequence[int], Sequence[str]]] = {}

    def take(
        self, name: str, gradient: torch.Tensor, program: tuple[Sequence[int], Sequence[str]]
    ) -> torch.Tensor | None:
        """What the program that reduces it gets: nothing but in the last micro-batch."""
        dtype = self._leaves[name].dtype
        kept = self._sums.get(name)
        if kept is None:
            if self.is_last:
                return gradient
            self._sums[name] = gradient.to(dtype, memory_format=torch.contiguous_format, copy=True)
            return None
        kept.add_(gradient)
        if not self.is_last:
            return None
        if dtype == gradient.dtype:
            del self._sums[name]
            return kept
        self._late[name] = program
        return None

    def finish(self) -> None:
        """Reduces what its own program could not take, because of its dtype."""
        for name, (steps, groups) in self._late.items():
            reduced = reshard(self._sums.pop(name), steps, groups)
            self._reduced.add(name, reduced, self._leaves[name].stride())
        for name, kept in self._sums.items():
            raise AssertionError(f"{name}: {tuple(kept.shape)} was never reduced")


# --- Graphs ---------------------------------------------------------------------------------


@dataclass
class _Copy:
    """A graph that is being copied."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    nodes: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def add(self, node: fx.Node) -> fx.Node:
        """The copy of a node."""
        self.nodes[node] = new = self.graph.node_copy(node, self.nodes.__getitem__)
        return new


def split_held(rank_graph: fx.GraphModule) -> tuple[fx.GraphModule | None, fx.GraphModule]:
    """What makes the held values (None: there are none), and what takes, after all inputs, these
    values and ``SummedGradients``."""
    held = [node for node in rank_graph.graph.nodes if node.meta.get(HELD)]
    head = _head(rank_graph, held) if held else None
    return head, _body(rank_graph, held)


def _head(rank_graph: fx.GraphModule, held: Sequence[fx.Node]) -> fx.GraphModule:
    copy = _Copy()
    slots = {slot_of(node) for node in held}
    for node in rank_graph.graph.nodes:
        if node.target is torch.ops.tensoropt.await_gradients.default:  # none comes
            copy.nodes |= {user: copy.nodes[node.args[0][user.args[1]]] for user in node.users}
            continue
        begins = node in held or _is_queue(node, held) or slots_begun(node) & slots
        if node.op == "placeholder" or begins:
            copy.add(node)
    copy.graph.output(tuple(copy.nodes[node] for node in held))
    copy.graph.lint()
    return fx.GraphModule(rank_graph, copy.graph, "HeldValues")


def _body(rank_graph: fx.GraphModule, held: Sequence[fx.Node]) -> fx.GraphModule:
    copy = _Copy()
    slots = {slot_of(node) for node in held}
    values: dict[fx.Node, fx.Node] = {}
    sums: fx.Node | None = None
    for node in rank_graph.graph.nodes:
        if node.op != "placeholder" and sums is None:
            values = {n: copy.graph.placeholder(f"held_{n.name}") for n in held}
            sums = copy.graph.placeholder("sums")
        if slots_begun(node) & slots:
            continue
        if node in values:
            queue, slot = node.args[-2:]
            assert isinstance(queue, fx.Node)
            put = torch.ops.tensoropt.put_value.default
            copy.graph.call_function(put, (values[node], copy.nodes[queue], slot))
        new = copy.add(node)
        edge: GradientEdge | None = node.meta.get(GRADIENT_EDGE)
        if edge is not None and edge.summed:
            copy.graph.call_function(_sum, (new, edge.parameter, sums, node.meta[GRADIENT_PROGRAM]))
    copy.graph.lint()
    return fx.GraphModule(rank_graph, copy.graph, "MicroBatchGraph")


def made_on(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """A copy whose calls make their tensors there, wherever the graph was captured."""
    copy = _Copy()
    for node in module.graph.nodes:
        new = copy.add(node)
        new.args, new.kwargs = pytree.tree_map_only(
            torch.device, lambda _: device, (new.args, new.kwargs)
        )
    return fx.GraphModule(module, copy.graph, "Totals")


def _device_of(root: nn.Module) -> torch.device:
    tensor = next(root.parameters())
    return local_tensor(tensor).device  # type: ignore[no-any-return]


def _is_queue(node: fx.Node, held: Sequence[fx.Node]) -> bool:
    return any(node is reshard.args[-2] for reshard in held)


def _sum(
    value: torch.Tensor,
    name: str,
    sums: SummedGradients,
    program: tuple[Sequence[int], Sequence[str]],
) -> None:
    """Gradients of what a reshard made of a parameter are given to ``sums`` first."""
    if value.grad_fn is None:
        return

    def before_program(gradients: Gradients) -> Gradients | None:
        (gradient,) = gradients
        if gradient is None:
            return None
        with torch.no_grad():
            return (sums.take(name, gradient, program),)

    value.grad_fn.register_prehook(before_program)
