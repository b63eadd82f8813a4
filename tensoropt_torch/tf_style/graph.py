"""The graph that the functions of ``tf_style`` add to.

It is an ``fx.Graph`` of PyTorch calls, run on meta tensors as it is written, so that
shapes are known and mistakes show where they are made. Nothing is allocated:
variables have values only in the module that ``Graph.materialise`` returns.
"""

from __future__ import annotations

import copy
import operator
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.tf_style.functions import Order, bias_add, dense, fuse_bias, store_as_torch
from tensoropt_torch.tf_style.initializers import Initializer, glorot_uniform_initializer
from tensoropt_torch.tf_style.tensor import Placeholder, Tensor, Variable

_FIRST_TO_LAST = (0, 2, 3, 1)
_LAST_TO_FIRST = (0, 3, 1, 2)


@dataclass(frozen=True)
class Computation:
    """A module on the meta device that computes some tensors of a graph.

    ``placeholders`` are its inputs, in order. Parameters in ``orders`` are stored with
    the user's dims in that order.
    """

    module: fx.GraphModule
    placeholders: list[Placeholder]
    orders: Mapping[str, Order]

    def as_given(self, path: str, stored: torch.Tensor) -> torch.Tensor:
        """A parameter with the shape that the user gave it."""
        order = self.orders.get(path)
        return (
            stored if order is None else stored.permute([order.index(d) for d in range(len(order))])
        )


class Graph:
    """Symbolic tensors and the variables that they are computed from.

    Args:
        seed: initial values depend on it and on the variables' names only.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.placeholders: dict[str, Placeholder] = {}
        self.variables: dict[str, Variable] = {}
        self._nodes = fx.Graph()
        self._root = nn.Module()
        self._constants: dict[str, torch.Tensor] = {}
        self._scopes: list[tuple[str, bool]] = []
        self.train_op: Any = None

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Functions of ``tf_style`` called inside add to this graph."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    # --- Sources -------------------------------------------------------------

    @contextmanager
    def scope(self, name: str, reuse: bool) -> Iterator[None]:
        """Prefix the names of variables with ``name/``."""
        self._scopes.append((_checked_name(name), reuse))
        try:
            yield
        finally:
            self._scopes.pop()

    def placeholder(
        self, shape: Sequence[int], dtype: torch.dtype, name: str | None
    ) -> Placeholder:
        """An input of a fixed shape."""
        if any(not isinstance(size, int) or size < 0 for size in shape):
            raise TensorOptError(
                f"placeholder '{name}' has shape {list(shape)}; give every size, also that of the "
                "global batch, as a number: plans are made for fixed shapes"
            )
        name = _checked_name(name or f"placeholder_{len(self.placeholders)}")
        if name in self.placeholders:
            raise TensorOptError(f"there is a placeholder '{name}' already; choose another name")
        node = self._nodes.placeholder(name)
        node.meta["val"] = torch.empty(tuple(shape), dtype=dtype, device="meta")
        placeholder = self.placeholders[name] = Placeholder(self, node)
        return placeholder

    def variable(
        self,
        name: str,
        shape: Sequence[int] | None,
        dtype: torch.dtype,
        initializer: Initializer | torch.Tensor | None,
        trainable: bool,
    ) -> Variable:
        """A parameter; in a scope that reuses, the one that is there."""
        full = "/".join([*(scope for scope, _ in self._scopes), _checked_name(name)])
        if isinstance(initializer, torch.Tensor):
            given = initializer
            shape = given.shape if shape is None else shape
            initializer = _copy_of(given, full, shape)
        if shape is None:
            raise TensorOptError(f"variable '{full}' has no shape; give one, or a tensor to start")
        known = self.variables.get(full)
        if known is not None and any(reuse for _, reuse in self._scopes):
            return _reused(known, shape)
        if known is not None:
            raise TensorOptError(
                f"there is a variable '{full}' already, of shape {list(known.shape)}; choose "
                "another name, or variable_scope(..., reuse=True) to use it again"
            )
        meta = torch.empty(tuple(shape), dtype=dtype, device="meta")
        owner, leaf = self._owner(full)
        owner.register_parameter(leaf, nn.Parameter(meta, requires_grad=trainable))
        stored = self._get_attr(full.replace("/", "."), meta)
        fill = initializer or glorot_uniform_initializer()
        variable = self.variables[full] = Variable(self, stored, full, fill)
        return variable

    def constant(self, value: torch.Tensor) -> Tensor:
        """A tensor that is not trained."""
        name = f"constant_{len(self._constants)}"
        self._constants[name] = value
        meta = value.to("meta")
        self._root.register_buffer(name, meta, persistent=False)
        return Tensor(self, self._get_attr(name, meta))

    def layer(self, make: Callable[[], nn.Module], kind: str, name: str | None) -> str:
        """A layer of ``torch.nn`` with parameters of its own; returns its path."""
        scopes = [scope for scope, _ in self._scopes]
        candidates = [name] if name else [kind, *(f"{kind}_{i}" for i in range(1, 10**6))]
        for candidate in candidates:
            full = "/".join([*scopes, _checked_name(candidate)])
            owner, leaf = self._owner(full)
            if leaf not in owner._modules and leaf not in owner._parameters:
                with torch.device("meta"):
                    owner.add_module(leaf, make())
                return full.replace("/", ".")
        raise TensorOptError(f"there is a variable or layer '{name}' already; choose another name")

    def _owner(self, full: str) -> tuple[nn.Module, str]:
        """The module of a variable's scope, made on the way, and its own name."""
        *path, leaf = full.split("/")
        owner = self._root
        for part in path:
            if part not in owner._modules and part not in owner._parameters:
                owner.add_module(part, nn.Module())
            if type(owner._modules.get(part)) is not nn.Module:
                raise TensorOptError(
                    f"'{full}': '{part}' is a variable or layer, so it cannot be a scope; choose "
                    "another name for one of them"
                )
            owner = owner.get_submodule(part)
        return owner, leaf

    def _get_attr(self, path: str, meta: torch.Tensor) -> fx.Node:
        # fx warns of attributes that are not in its own owning module: it has none.
        node = self._nodes.create_node("get_attr", path)
        node.meta["val"] = meta
        return node

    # --- Calls ---------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The tensor, or tuple of tensors, that a PyTorch function returns."""
        stored = pytree.tree_map(self._last, (args, kwargs), is_leaf=_is_tensor)
        return self._add("call_function", function, *stored)

    def call_layer(self, path: str, *args: Any) -> Any:
        """Calls a layer that ``layer`` made."""
        stored = pytree.tree_map(self._last, args, is_leaf=_is_tensor)
        return self._add("call_module", path, stored, {})

    def call_images(self, function: Any, x: Tensor, *args: Any, channels_first: bool) -> Tensor:
        """Calls a function, or the layer of a path, that takes images with their
        channels first. ``channels_first`` says where the user's are."""
        kind = "call_module" if isinstance(function, str) else "call_function"
        image = x.stored if channels_first else self._first(x)
        rest = pytree.tree_map(self._last, args, is_leaf=_is_tensor)
        result: Tensor = self._add(kind, function, (image, *rest), {})
        result.channels_first = not channels_first
        return result

    def elementwise(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """Like ``call``; images stay stored as they are."""
        tensors = [argument for argument in args if isinstance(argument, Tensor)]
        alike = all(t.channels_first and t.shape == tensors[0].shape for t in tensors)
        if not alike:
            result: Tensor = self.call(function, *args, **kwargs)
            return result
        stored = pytree.tree_map(lambda x: x.stored if _is_tensor(x) else x, args)
        result = self._add("call_function", function, stored, kwargs)
        result.channels_first = True
        return result

    def add(self, x: Tensor, y: Tensor | float) -> Tensor:
        """``x + y``; a bias is added so that its product can take it."""
        if isinstance(y, Variable) and y.shape == x.shape[-1:]:
            result: Tensor = self._add(
                "call_function", bias_add, (x.stored, y.stored, x.channels_first), {}
            )
            result.channels_first = x.channels_first
            return result
        return self.elementwise(torch.add, x, y)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of the last two dims."""
        if len(a.shape) < 1 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
            raise TensorOptError(
                f"matmul of '{a.name}' {list(a.shape)} and '{b.name}' {list(b.shape)}: the last "
                "dim of the first must be the last but one of the second; transpose or reshape one"
            )
        is_dense = isinstance(b, Variable) and len(b.shape) == 2
        result: Tensor = self.call(dense if is_dense else torch.matmul, a, b)
        return result

    def _first(self, x: Tensor) -> fx.Node:
        """The node of images with their channels first."""
        return x.stored if x.channels_first else self._permuted(x.stored, _LAST_TO_FIRST)

    def _last(self, x: Any) -> Any:
        """The node of a tensor with its dims as the user sees them."""
        if not isinstance(x, Tensor):
            return x
        if x.graph is not self:
            raise TensorOptError(f"'{x.name}' belongs to another graph; build it again in this one")
        return self._permuted(x.stored, _FIRST_TO_LAST) if x.channels_first else x.stored

    def _permuted(self, node: fx.Node, order: tuple[int, ...]) -> fx.Node:
        permuted: Tensor = self._add("call_function", torch.permute, (node, order), {})
        return permuted.stored

    def _add(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        value = self._value(kind, target, args, kwargs)
        node = self._nodes.create_node(kind, target, tuple(args), dict(kwargs))
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            return Tensor(self, node)
        items = [(index, item) for index, item in enumerate(value) if _is_real(item)]
        return tuple(self._item(node, index, item) for index, item in items)

    def _item(self, node: fx.Node, index: int, value: torch.Tensor) -> Tensor:
        item = self._nodes.call_function(operator.getitem, (node, index))
        item.meta["val"] = value
        return Tensor(self, item)

    def _value(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        call = self._root.get_submodule(target) if kind == "call_module" else target
        values = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
        try:
            with torch.no_grad():
                return call(*values[0], **values[1])
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            name = target if kind == "call_module" else getattr(target, "__name__", str(target))
            shapes = [list(v.shape) for v in pytree.tree_leaves(values) if _is_real(v)]
            raise TensorOptError(
                f"{name} cannot be applied to tensors of shapes {shapes}: "
                f"{str(error).splitlines()[0]}"
            ) from error

    # --- Modules -------------------------------------------------------------

    def module(self, outputs: Sequence[Tensor]) -> Computation:
        """What computes ``outputs``, on the meta device."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        wanted = [self._last(output) for output in outputs]
        needed = self._needed(wanted)
        for node in self._nodes.nodes:
            if node in needed:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        results = tuple(copies[node] for node in wanted)
        graph.output(results if len(results) > 1 else results[0])
        fuse_bias(graph)
        orders = store_as_torch(graph)
        graph.lint()
        module = fx.GraphModule(self._root, graph, "TfStyleGraph")
        for path, order in orders.items():
            owner, leaf = module.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
            given = owner.get_parameter(leaf)
            stored = given.detach().permute(order).contiguous()
            owner.register_parameter(leaf, nn.Parameter(stored, given.requires_grad))
        taken = [p for p in self.placeholders.values() if p.stored in needed]
        return Computation(module, taken, orders)

    def materialise(self, computation: Computation, device: torch.device) -> fx.GraphModule:
        """The module with values: variables as their initialisers and layers as PyTorch
        draw them. The same on every rank and for every computation of the graph."""
        real: fx.GraphModule = copy.deepcopy(computation.module).to_empty(device=device)
        for path, parameter in real.named_parameters():
            variable = self.variables.get(path.replace(".", "/"))
            if variable is not None:
                with torch.no_grad(), _drawing_for(path, self.seed, device):
                    variable.initializer(computation.as_given(path, parameter))
        for path, layer in real.named_modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                with _drawing_for(path, self.seed, device):
                    reset()
        for name, buffer in real.named_buffers():
            if name in self._constants:
                buffer.copy_(self._constants[name])
        return real

    @staticmethod
    def _needed(outputs: Sequence[fx.Node]) -> set[fx.Node]:
        needed: set[fx.Node] = set()
        pending = list(outputs)
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending.extend(node.all_input_nodes)
        return needed


_current: ContextVar[Graph] = ContextVar("current tf_style graph")


def current_graph() -> Graph:
    """The graph that functions add to; made on first use."""
    try:
        return _current.get()
    except LookupError:
        return reset_default_graph()


def reset_default_graph(seed: int = 0) -> Graph:
    """Start a new graph."""
    graph = Graph(seed)
    _current.set(graph)
    return graph


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _checked_name(name: str) -> str:
    if not all(part.isidentifier() for part in name.split("/")):
        raise TensorOptError(
            f"'{name}' is no name; use letters, digits and underscores, and '/' between scopes"
        )
    return name


def _copy_of(value: torch.Tensor, name: str, shape: Sequence[int]) -> Initializer:
    if tuple(value.shape) != tuple(shape):
        raise TensorOptError(
            f"variable '{name}' has shape {list(shape)}, but its initializer has "
            f"{list(value.shape)}; give one of them"
        )
    return lambda tensor: tensor.copy_(value)


def _reused(variable: Variable, shape: Sequence[int]) -> Variable:
    if variable.shape != tuple(shape):
        raise TensorOptError(
            f"variable '{variable.name}' has shape {list(variable.shape)}, it cannot be used again "
            f"with shape {list(shape)}"
        )
    return variable


@contextmanager
def _drawing_for(name: str, seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers that depend on a name and a seed only."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed ^ zlib.crc32(name.encode()))
        yield
