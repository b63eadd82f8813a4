"""What some operators of a graph do to memory in forward and in backward: a tape of the calls that
PyTorch makes below autograd while they run, and the two functions that make these calls again.

::

    tape = Tape(inputs)
    with tape:
        outputs = graph(*inputs)                    # with gradients
        gradients = torch.autograd.grad(...)        # of these inputs
    program = tape.program(outputs, tangents, gradients)

All of it is recorded while the operators run for good, on what they are given: nothing is traced
beforehand, and nothing is computed twice. What is called again is the same kernels in the same
order, so that the numbers are the same; what is held between forward and backward is what autograd
holds. Views that have the memory and the geometry of something that is there are that.

Collectives that operators of ours begin and end are among these calls, as all others, with the
queues in which they are meanwhile.

It has no way for what depends on values, nor for other collectives: ``NotRecordedError`` says
what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_aggregate, map_arg
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from tensoropt_torch.emit.boxed_program import BoxedProgram, Geometry, Takes, geometry_of
from tensoropt_torch.emit.quick_calls import quicken
from tensoropt_torch.emit.recorded_graph import (
    BACKWARD,
    GEOMETRY,
    accumulate_in_place,
    drop_views,
    is_view,
    leaving_after,
    merge_views,
    own_gradients,
)
from tensoropt_torch.emit.recorded_queues import STARTS, counted, join_queue_calls
from tensoropt_torch.frontend.call_context import current_autocast
from tensoropt_torch.operators import OPS
from tensoropt_torch.runtime.parameter_queue import ParameterQueue, parameter_queue
from tensoropt_torch.runtime.random import call_seeded, draws

_ATEN = torch.ops.aten
_AD_INPLACE_OR_VIEW: Any = torch._C.DispatchKey.ADInplaceOrView
_CASTS = {
    torch.bfloat16: "bfloat16",
    torch.float16: "half",
    torch.float32: "float",
    torch.float64: "double",
}
_UNSEEN = "unseen"  # whether autograd does not see that the call writes to an input
_BY_VALUE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class NotRecordedError(Exception):
    """A tape has no way for what was called."""


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the calls that are made while it is entered.

    Args:
        inputs: of what is recorded, tensors and others.
        seeds: the numbers of those that are seeds of draws.
    """

    def __init__(self, inputs: Sequence[Any], seeds: Sequence[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reason = ""  # why there is no program
        self.is_backward = False
        self._graph = fx.Graph()
        self._constants = torch.nn.Module()
        self._nodes: Any = WeakTensorKeyDictionary()
        # The memories of gradients that are in queues, by storages, whose addresses are not used
        # again.
        self._lent: dict[int, fx.Node] = {}
        self._lenders: list[StorageWeakRef] = []
        self._queues: dict[int, fx.Node] = {}
        self._inputs = [self._graph.placeholder(f"input_{i}") for i in range(len(inputs))]
        self._seed = self._inputs[seeds[0]] if seeds else None
        self._stream: tuple[int, ...] | None = None
        for node, value in zip(self._inputs, inputs, strict=True):
            if isinstance(value, torch.Tensor):
                self._note(node, value, node)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls it, and writes that down."""
        kwargs = kwargs or {}
        if self.reason or not isinstance(func, OpOverload):
            self.reason = self.reason or f"{func} is no operator"
            return func(*args, **kwargs)
        begins = func is OPS.begin_gradient.default
        before = counted() if begins else ()
        result = func(*args, **kwargs)
        try:
            node = self._record(func, args, kwargs, result)
            if begins:
                node.meta[STARTS] = counted() != before
        except NotRecordedError as error:
            self.reason = str(error)
        return result

    def add_effect(self, function: Callable[..., None], *args: Any) -> None:
        """A call that gives nothing was made, with what is no tensor."""
        self._call(function, args, {})

    def add_queue(self, queue: ParameterQueue, *sizes: int) -> None:
        """A queue was made, of these sizes."""
        self._queues[int(queue)] = self._call(parameter_queue, sizes, {})

    @contextmanager
    def drawing(self, stream: tuple[int, ...]) -> Iterator[None]:
        """Inside, a random operator is called as ``call_seeded`` does, with this stream."""
        self._stream = stream
        try:
            yield
        finally:
            self._stream = None

    @contextmanager
    def backward(self, tangents: Sequence[torch.Tensor | None]) -> Iterator[None]:
        """Inside, backward is recorded, which begins with these gradients of the outputs."""
        self.is_backward = True
        for number, tangent in enumerate(tangents):
            if tangent is not None:
                node = self._graph.placeholder(f"tangent_{number}")
                try:
                    self._note(node, tangent, node)
                except NotRecordedError as error:
                    self.reason = str(error)
        with self:
            yield

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The one that stands for it.

        Raises:
            NotRecordedError: nobody has seen how it was made.
        """
        node: fx.Node | None = self._nodes.get(tensor)
        if node is not None:
            return node
        # What C++ makes of a number is not dispatched.
        if tensor.dim() or tensor.device.type != "cpu" or tensor.requires_grad:
            raise NotRecordedError(f"a tensor of shape {tuple(tensor.shape)} comes from nowhere")
        name = f"number_{len(self._constants._buffers)}"
        self._constants.register_buffer(name, tensor)
        node = self._graph.get_attr(name)
        self._note(node, tensor, node)
        return node

    # --- Writing down

    def _note(self, node: fx.Node, tensor: torch.Tensor, memory: fx.Node) -> None:
        _check_memory([tensor])
        if tensor.is_conj() or tensor.is_neg():
            raise NotRecordedError("a tensor is conjugated when it is read")
        node.meta[GEOMETRY] = Geometry.of(tensor, memory)
        node.meta[BACKWARD] = self.is_backward
        self._nodes[tensor] = node

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        node = self._graph.call_function(target)
        node.args, node.kwargs = args, kwargs  # given before, they are searched for symbols
        node.meta[BACKWARD] = self.is_backward
        return node

    def _record(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> fx.Node:
        _check_values(func, args)
        operands: dict[fx.Node, torch.Tensor] = {}

        def named(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            node = self.node_of(value)
            operands[node] = value
            return node

        called, keywords = map_aggregate((tuple(args), dict(kwargs)), named)
        _check_memory(operands.values())
        target: Any = func
        if draws(func, args, kwargs):
            if self._stream is None or self._seed is None:
                raise NotRecordedError(f"{func} draws random numbers")
            target, called = call_seeded, (func, self._seed, self._stream, *called)
            self._stream = None  # a second draw would have the numbers of the first
        elif func.namespace == "tensoropt":
            called = self._with_queue(func, called)
        memories = self._memories_of(func, operands)
        node = self._call(target, called, keywords)
        if func._schema.is_mutable and _is_below_versions():
            node.meta[_UNSEEN] = any(o.meta[GEOMETRY].memory in self._inputs for o in operands)
        if isinstance(result, torch.Tensor):
            self._note_result(node, result, memories)
            return node
        for index, part in enumerate(result if isinstance(result, (tuple, list)) else ()):
            if isinstance(part, torch.Tensor):
                self._note_result(self._call(getitem, (node, index), {}), part, memories)
        return node

    def _note_result(
        self, node: fx.Node, tensor: torch.Tensor, memories: dict[int, fx.Node]
    ) -> None:
        _check_memory([tensor])  # what is sparse has no memory to ask for
        self._note(node, tensor, memories.setdefault(_storage(tensor), node))

    def _memories_of(
        self, func: OpOverload, operands: Mapping[fx.Node, torch.Tensor]
    ) -> dict[int, fx.Node]:
        """Those that what a call gives may lie in. Operators of ours give something else in each
        step, even where that is what they have been given; gradients may come back as they are."""
        found = {_storage(t): node.meta[GEOMETRY].memory for node, t in operands.items()}
        if func is OPS.begin_gradient.default:
            self._lent |= found
            self._lenders += [StorageWeakRef(t.untyped_storage()) for t in operands.values()]  # type: ignore[no-untyped-call]
        if func is OPS.take_gradients.default:
            return dict(self._lent)
        return {} if func.namespace == "tensoropt" else found

    def _with_queue(self, func: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with the queue in place of its number, which is another one in each step.
        One that backward makes by itself has the usual sizes."""
        names = [argument.name for argument in func._schema.arguments]
        if "queue" not in names:
            return args
        place = names.index("queue")
        number = args[place]
        if number not in self._queues:
            self._queues[number] = self._call(parameter_queue, (), {})
        return (*args[:place], self._queues[number], *args[place + 1 :])

    # --- The program

    def program(
        self,
        outputs: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        leaves: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
    ) -> BoxedProgram:
        """What was recorded: how the outputs are made, and of the gradients of these, as many as
        there are tangents, those of leaves.

        Raises:
            NotRecordedError: it cannot be called again.
        """
        if self.reason:
            raise NotRecordedError(self.reason)
        made = [self.node_of(tensor) for tensor in outputs]
        found = [None if tensor is None else self.node_of(tensor) for tensor in gradients]
        self._check_outputs(made)
        own = own_gradients(found, leaves)
        same = merge_views(self._graph)
        join_queue_calls(self._graph)
        made = [same.get(node, node) for node in made]
        found = [None if node is None else same.get(node, node) for node in found]
        accumulate_in_place(self._graph, found)
        halves = _Halves(self._graph, self._constants, self._inputs)
        first, second, needs, held = halves.cut(made, found, own)
        constant = tuple(n for n, tensor in enumerate(outputs) if not tensor.requires_grad)
        lie, casts = geometry_of(tangents), current_autocast()
        return BoxedProgram(first, second, needs, len(made), constant, lie, casts, held)

    def _check_outputs(self, made: Sequence[fx.Node]) -> None:
        memories = [node.meta[GEOMETRY].memory for node in made]
        if len(set(memories)) < len(memories) or set(memories) & set(self._inputs):
            raise NotRecordedError("outputs share memory with each other, or with inputs")


def _is_below_versions() -> bool:
    """Whether what is called now counts no new versions of what it writes to, as kernels do not
    that write to statistics by themselves."""
    return bool(torch._C._dispatch_tls_local_exclude_set().has(_AD_INPLACE_OR_VIEW))


@cache
def _unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls it without new versions of what it writes to."""

    def unseen(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return function(*args, **kwargs)

    return unseen


def _storage(tensor: torch.Tensor) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found


def _check_values(func: OpOverload, args: Sequence[Any]) -> None:
    if func is _ATEN.index.Tensor:
        indices = [i for i in args[1] if isinstance(i, torch.Tensor)]
        if not any(i.dtype in (torch.bool, torch.uint8) for i in indices):
            return
    if func.namespace == "c10d":
        raise NotRecordedError(f"{func} is called by itself")
    if any(tag in func.tags for tag in _BY_VALUE):
        raise NotRecordedError(f"{func} depends on values")
    if torch.Tag.inplace_view in func.tags and func is not _ATEN.detach_.default:
        raise NotRecordedError(f"{func} changes the shape of a tensor that is there")


def _check_memory(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            raise NotRecordedError(f"a {type(tensor).__name__} of layout {tensor.layout}")


@dataclass
class _Halves:
    """Cuts a graph where backward begins."""

    graph: fx.Graph
    constants: torch.nn.Module
    inputs: Sequence[fx.Node]

    def cut(
        self, made: Sequence[fx.Node], gradients: Sequence[fx.Node | None], own: Sequence[int]
    ) -> Any:
        """Both halves, the inputs that backward needs, and the outputs whose memory it does.
        Gradients of the numbers ``own`` leave as soon as they are made."""
        self.graph.output((tuple(made), tuple(gradients)))
        drop_views(self.graph)
        calls = [n for n in self.graph.nodes if n.op in ("call_function", "get_attr")]
        later = [n for n in calls if n.meta[BACKWARD]]
        taken = [o for n in later for o in n.all_input_nodes] + [g for g in gradients if g]
        border = dict.fromkeys(n for n in taken if n.op != "placeholder" and not n.meta[BACKWARD])
        remade: dict[fx.Node, None] = {}
        for node in border:
            self._is_remade(node, remade)
        saved = [node for node in border if node not in remade]
        used = {o for n in (*later, *remade) for o in n.all_input_nodes} | {*taken}
        needs = tuple(n for n, node in enumerate(self.inputs) if node in used)
        memories = {n.meta[GEOMETRY].memory for n in saved if GEOMETRY in n.meta}
        first = self._forward([n for n in calls if not n.meta[BACKWARD]], (*made, *saved))
        held = [*[self.inputs[n] for n in needs], *saved, *self._tangents()]
        second = self._backward(held, [*remade, *later], gradients, own)
        outputs = enumerate(made)
        return (
            first,
            second,
            needs,
            tuple(n for n, node in outputs if node.meta[GEOMETRY].memory in memories),
        )

    def _tangents(self) -> list[fx.Node]:
        own = set(self.inputs)
        return [n for n in self.graph.find_nodes(op="placeholder") if n not in own]

    def _is_remade(self, node: fx.Node, remade: dict[fx.Node, None]) -> bool:
        """Whether it is a view of inputs, which are there: these are made again instead of being
        kept. They are added with what they are made of."""
        if node.op == "placeholder" or node in remade:
            return True
        if node.op != "call_function" or node.meta[BACKWARD]:
            return False
        # What has no geometry is several views, of which one is asked for.
        of_input = is_view(node) and node.meta[GEOMETRY].memory.op == "placeholder"
        if GEOMETRY in node.meta and not of_input:
            return False
        if not all(self._is_remade(operand, remade) for operand in node.all_input_nodes):
            return False
        remade[node] = None
        return True

    def _forward(
        self, calls: Sequence[fx.Node], results: Sequence[fx.Node]
    ) -> Callable[..., Sequence[torch.Tensor]]:
        graph = fx.Graph()
        nodes = {node: graph.placeholder(node.name) for node in self.inputs}
        for node, new in nodes.items():
            new.meta = node.meta
        for node in calls:
            nodes[node] = _copied(node, graph, nodes)
        graph.output(tuple(nodes[node] for node in results))
        return self._function(graph, "RecordedForward")

    def _backward(
        self,
        held: Sequence[fx.Node],
        calls: Sequence[fx.Node],
        gradients: Sequence[fx.Node | None],
        own: Sequence[int],
    ) -> Callable[[list[torch.Tensor], Takes], Sequence[torch.Tensor | None]]:
        graph = fx.Graph()
        given, takes = graph.placeholder("held"), graph.placeholder("takes")
        leaving = leaving_after(calls, {number: gradients[number] for number in own})
        nodes = {node: graph.call_method("pop", (given,)) for node in reversed(held)}
        for node, new in nodes.items():
            new.meta = node.meta
        for node in calls:
            nodes[node] = _copied(node, graph, nodes)
            for number, gradient in leaving.get(node, ()):
                graph.call_method("take", (takes, number, nodes[gradient]))
        left = {number for leave in leaving.values() for number, _ in leave}
        rest = (None if n in left else node for n, node in enumerate(gradients))
        graph.output(tuple(None if node is None else nodes[node] for node in rest))
        return self._function(graph, "RecordedBackward")

    def _function(self, graph: fx.Graph, name: str) -> Callable[..., Any]:
        drop_views(graph)
        for node in graph.nodes:
            if node.op == "call_function" and node.meta.get(_UNSEEN):
                node.target = _unseen(node.target)
            elif not _cast_by_method(node):
                quicken(node)
        graph.lint()
        return fx.GraphModule(self.constants, graph, name).forward


def _copied(node: fx.Node, graph: fx.Graph, nodes: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """A call in another graph, where these stand for its operands; without the search
    for symbols of ``node_copy``."""
    new = graph.create_node(node.op, node.target, name=node.name)
    new.args = map_arg(node.args, nodes.__getitem__)
    new.kwargs = map_arg(node.kwargs, nodes.__getitem__)
    new.meta = {**node.meta}
    return new


def _cast_by_method(node: fx.Node) -> bool:
    """A cast that makes a tensor of another dtype, by the method of that name, which takes the
    host half as long."""
    if node.target is not _ATEN._to_copy.default or node.kwargs.keys() != {"dtype"}:
        return False
    (source,), dtype = node.args, node.kwargs["dtype"]
    assert isinstance(source, fx.Node) and isinstance(dtype, torch.dtype)
    geometry: Geometry | None = source.meta.get(GEOMETRY)
    if dtype not in _CASTS or geometry is None or geometry.dtype is dtype:
        return False
    node.op, node.target, node.kwargs = "call_method", _CASTS[dtype], {}
    return True
