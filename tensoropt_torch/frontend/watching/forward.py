"""Watches forward passes while a model is captured: which attributes they read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.watching.attribute_reads import HOOKS, AccessLog, is_attribute
from tensoropt_torch.frontend.watching.attribute_uses import (
    Attributes,
    Images,
    Owner,
    Place,
    Written,
    changed_values,
    owners_of,
)
from tensoropt_torch.frontend.watching.filled_buffers import (
    FilledBuffers,
    refuse_filled,
    refuse_saved,
)
from tensoropt_torch.frontend.watching.images import ATOMS, MISSING, Image
from tensoropt_torch.frontend.watching.leaks import LeakedTensors
from tensoropt_torch.frontend.watching.lifting import Lifted
from tensoropt_torch.frontend.watching.numbers import NumberTrace
from tensoropt_torch.frontend.watching.object_reads import is_record
from tensoropt_torch.frontend.watching.random_numbers import Draws

_CONTAINERS = (list, dict, set)
# Says that hooks have been set, which are taken away with it: models of Hugging Face collect
# hidden states and logits of routers so. It changes nothing that forward computes.
_SETS_UP = frozenset({"_output_capturing_hooks_installed"})


@dataclass
class _State:
    """What attributes were before a forward pass, to be given back."""

    images: dict[Place, Image]
    values: dict[Place, Any]
    contents: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    @staticmethod
    def of(owners: Sequence[Owner]) -> _State:
        images, state = Images(), _State({}, {})
        for owner in owners:
            for name, image in images.of_module(owner.module).items():
                place = owner.place(name)
                state.images[place] = image
                state.values[place] = value = vars(owner.module)[name]
                state._keep(value)
            for name in HOOKS:
                state._keep(vars(owner.module).get(name))
        return state

    def _keep(self, value: Any) -> None:
        """The contents of containers, of which those of hooks have attributes, too."""
        for own in (value, vars(value)) if is_record(value) else (value,):
            if isinstance(own, _CONTAINERS) and id(own) not in self.contents:
                self.contents[id(own)] = own, copy(own)
                for item in own.values() if isinstance(own, dict) else own:
                    self._keep(item)

    def restore(self, owners: Sequence[Owner]) -> None:
        """The attributes are what they were; new ones go."""
        for own, old in self.contents.values():
            if isinstance(own, list):
                own[:] = old
            else:
                own.clear()
                own.update(old)
        for owner in owners:
            attributes = vars(owner.module)
            for name in [n for n in attributes if is_attribute(attributes, n)]:
                old = self.values.get(owner.place(name), MISSING)
                if old is MISSING:
                    del attributes[name]
                elif attributes[name] is not old:
                    attributes[name] = old
        by_owner = {(o.path, o.of_loss): vars(o.module) for o in owners}
        for place, value in self.values.items():
            by_owner[place.path, place.of_loss].setdefault(place.name, value)


class ForwardWatch:
    """What the forward passes of a model and its loss do with attributes. Attributes are given
    back afterwards.

    Attributes:
        attributes: what was found in the last pass.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Any] | None = None,
        draws: Draws | None = None,
        leaked: LeakedTensors | None = None,
        trace: NumberTrace | None = None,
        followed: Sequence[Lifted] = (),
    ) -> None:
        """``followed`` are the numbers that ``trace`` follows."""
        self._owners = owners_of(model, loss_fn)
        self._trace = trace
        self._followed = followed
        self._draws = draws or Draws(model)
        self._leaked = leaked or LeakedTensors(type(model).__name__)
        self._twice = False
        self._model = type(model).__name__
        self._carried: dict[Place, Any] = {}
        self._filled: dict[Place, Image] = {}
        self.attributes = Attributes()

    @property
    def needs_second_pass(self) -> bool:
        """Whether attributes were read and then written, or empty buffers filled, so that a second
        pass has to show that it does the same as the first."""
        return bool(self._carried or self._filled)

    def traced(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What the forward pass returns; if it puts something into attributes the pair of that
        and the tensors among it."""
        args, kwargs = self._with_numbers(args, kwargs)

        def run() -> Any:
            return forward(*args, **kwargs)

        return self._run_twice(run) if self._twice else self._run(run)

    def _with_numbers(self, args: Any, kwargs: Any) -> Any:
        """The arguments, with numbers that are followed."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        for key in self._followed:
            if self._trace is not None and not isinstance(key, Place):
                leaves[key] = self._trace.follow(key, leaves[key])
        return pytree.tree_unflatten(leaves, spec)

    @contextmanager
    def _attributes_followed(self) -> Iterator[None]:
        """Meanwhile attributes are numbers that are followed."""
        before: list[tuple[dict[str, Any], str, Any, Any]] = []
        for key in self._followed:
            if self._trace is not None and isinstance(key, Place):
                own = vars(self._module(key))
                value = own[key.name]
                own[key.name] = number = self._trace.follow(key, value)
                before.append((own, key.name, value, number))
        try:
            with nullcontext() if self._trace is None else self._trace.watching():
                yield
        finally:
            for own, name, value, number in before:
                if own.get(name) is number:
                    own[name] = value

    @contextmanager
    def second_pass(self) -> Iterator[None]:
        """Meanwhile ``traced`` runs forward twice, and raises TensorOptError if the second time
        does not do the same as the first."""
        self._twice = True
        try:
            yield
        finally:
            self._twice = False

    def _run(self, forward: Callable[[], Any]) -> Any:
        state, buffers = _State.of(self._owners), FilledBuffers(self._owners)
        try:
            log = AccessLog()
            with (
                self._attributes_followed(),
                self._draws.watching(),
                self._leaked.watching(),
                log.watching(),
            ):
                result = forward()
            images = self._images()
            changed = list(changed_values(state.images, images))
            values = {place: self._value(place) for place, *_ in changed}
            self._filled, saved = buffers.images(), buffers.saved()
        finally:
            state.restore(self._owners)
            buffers.restore()
        refuse_saved(self._model, saved)
        reads = self._reads(log)
        self._check_iterators(reads)
        # What is the same object was changed in place, so somebody has read it.
        kept = {p for p, v in values.items() if state.values.get(p, MISSING) is v}
        read = kept.union(reads)
        self._carried = {p: v for p, v in values.items() if p in read and p.name not in _SETS_UP}
        outputs = {p: v for p, v in values.items() if p not in read}
        self._check(outputs)
        written, tensors = Written.of(outputs)
        empty = (p for p in self._carried if state.values.get(p) in (None, MISSING))
        fills = tuple(str(place) for place in (*self._filled, *empty))
        self.attributes = Attributes(tuple(reads), written if outputs else None, log.fields, fills)
        return (result, tensors) if outputs else result

    def _run_twice(self, forward: Callable[[], Any]) -> Any:
        state, buffers = _State.of(self._owners), FilledBuffers(self._owners)
        try:
            graph = _traced_graph()
            start = 0 if graph is None else len(graph.nodes)
            forward()
            middle, images = 0 if graph is None else len(graph.nodes), self._images()
            filled = buffers.images()
            result = forward()
            again = {place for place, *_ in changed_values(images, self._images())}
            refilled = [place for place, *_ in changed_values(filled, buffers.images())]
        finally:
            state.restore(self._owners)
            buffers.restore()
        self._refuse(place for place in self._carried if place in again)
        refuse_filled(self._model, refilled)
        nodes = [] if graph is None else list(graph.nodes)
        if graph is None or _calls(nodes, start, middle) != _calls(nodes, middle, len(nodes)):
            refuse_filled(self._model, self._filled)
            self._refuse(self._carried)
        return result

    def _images(self) -> dict[Place, Image]:
        images = Images()
        return {
            owner.place(name): image
            for owner in self._owners
            for name, image in images.of_module(owner.module).items()
        }

    def _value(self, place: Place) -> Any:
        return vars(self._module(place)).get(place.name, MISSING)

    def _module(self, place: Place) -> nn.Module:
        key = place.path, place.of_loss
        return next(o.module for o in self._owners if (o.path, o.of_loss) == key)

    def _reads(self, log: AccessLog) -> list[Place]:
        known = {id(vars(owner.module)): owner for owner in self._owners}
        return sorted(known[own].place(name) for own, name in log.reads if own in known)

    def _check_iterators(self, places: Sequence[Place]) -> None:
        """Nobody can see how far they are."""
        for place in places:
            value = self._value(place)
            if isinstance(value, Iterator) and not hasattr(value, "__dict__"):
                raise TensorOptError(
                    f"the forward pass of {self._model} reads attribute '{place}', a "
                    f"{type(value).__name__}: what it gives in a call depends on the calls before, "
                    "which a captured graph cannot follow; take from it in the training loop, and "
                    "pass what it gives as an input, or set it as an attribute"
                )

    def _check(self, values: Mapping[Place, Any]) -> None:
        """Only tensors and plain values can be put back, in plain containers."""
        for place, value in values.items():
            kinds = {type(leaf) for leaf in pytree.tree_leaves(value)}
            others = {kind for kind in kinds - ATOMS if not issubclass(kind, torch.Tensor)}
            if value is MISSING or others:
                raise TensorOptError(
                    f"the forward pass of {self._model} writes {type(value).__name__} into "
                    f"attribute '{place}', which a parallel module cannot put back; let it "
                    "write tensors, numbers and strings, in tuples, lists and dicts, or return it"
                )

    def _refuse(self, places: Any) -> None:
        names = ", ".join(f"'{place}'" for place in places)
        if names:
            raise TensorOptError(
                f"the forward pass of {self._model} reads and changes attribute {names}, so that "
                "what it computes depends on the calls before; a captured graph would compute "
                "the same in every call. Make it a buffer (register_buffer, changed in place: "
                "self.count.add_(1)), pass it as an input, or return what is collected"
            )


def _traced_graph() -> fx.Graph | None:
    """The graph that is being traced."""
    mode = get_proxy_mode()
    tracer = getattr(mode, "tracer", None)
    graph = getattr(tracer, "graph", None)
    return graph if isinstance(graph, fx.Graph) else None


def _calls(nodes: Sequence[fx.Node], start: int, end: int) -> list[str]:
    """The calls of a stretch of a graph that depend on something from outside, or draw."""
    depends: set[fx.Node] = set()
    found = []
    for number, node in enumerate(nodes):
        is_call, tags = node.op == "call_function", getattr(node.target, "tags", ())
        draws = torch.Tag.nondeterministic_seeded in tags
        if not is_call or draws or any(used in depends for used in node.all_input_nodes):
            depends.add(node)
            if start <= number < end and node.op == "call_function":
                literals = fx.map_arg((node.args, node.kwargs), lambda used: "tensor")
                found.append(f"{node.target}{literals}")
    return found
