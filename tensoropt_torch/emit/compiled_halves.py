"""A compiled forward and its backward as one node of autograd, which gives parameters their
gradients.

::

    halves = seen.halves(outputs, inputs)        # None: there is more to do than to call both
    made = halves.run(taken, trained, places)    # as the graph does

What AOTAutograd makes of both has a node of its own, beside that of the parts of parameters. Each
is given all gradients one by one, and takes longer for that than a small model does for its
operators. Inputs that forward writes to (running statistics) are seen to be written to. What else
AOTAutograd does, where outputs are views or inputs with gradients are written to, is not done here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import increment_version

from tensoropt_torch.emit.one_node import Trained, changed_error, freed_error, run_as_one_node
from tensoropt_torch.emit.recorded_borders import Given
from tensoropt_torch.parameters.local_parts import copied_as_parts, those_apart, those_besides
from tensoropt_torch.runtime.functional import Collective

Half = Callable[[list[torch.Tensor]], Sequence[Any]]  # empties what it is given

_C: Any = torch._C
_VERSION = attrgetter("_version")


@dataclass
class Seen:
    """What a backend has compiled, with the graphs that it was given.

    Attributes:
        collectives: of each graph.
        donates: whether backward writes over what was saved.
        constant: the numbers of outputs that have no gradient.
        written: the numbers of inputs that forward writes to, as autograd is to see; None: it
            leaves some of that to its caller.
    """

    collectives: list[list[Collective]] = field(default_factory=list)
    forward: tuple[fx.Graph, Half] | None = None
    backward: tuple[fx.Graph, Half] | None = None
    donates: bool = False
    constant: tuple[int, ...] = ()
    written: tuple[int, ...] | None = ()

    def add(self, graph: fx.Graph, half: Half, is_backward: bool) -> None:
        """One more."""
        if is_backward:
            self.backward = graph, half
        else:
            self.forward = graph, half
            about: Any = torch._guards.TracingContext.get().fw_metadata
            self.donates = bool(about.bw_donated_idxs)
            trained = [info.requires_grad for info in about.output_info]
            self.constant = tuple(n for n, is_trained in enumerate(trained) if not is_trained)
            self.written = _written(about)

    def halves(self, outputs: int, inputs: int) -> CompiledHalves | None:
        """Both, of a graph that takes and gives so many tensors, of which one has a gradient; None:
        they are not called so."""
        if self.forward is None or self.backward is None or self.written is None:
            return None
        (first, forward), (second, backward) = self.forward, self.backward
        made, saved = _given(first)[:outputs], _given(first)[outputs:]
        taken, later = _taken(first), _taken(second)
        is_simple = (
            len(taken) == inputs
            and all(isinstance(node, fx.Node) for node in made)
            and all(n in self.constant or node not in taken for n, node in enumerate(made))
            and len(self.constant) == outputs - 1
            and len(later) == len(saved) + 1
            and all(_is_like(a, b) for a, b in zip(saved, later, strict=False))
            and len(_given(second)) == inputs
        )
        if not is_simple:
            return None
        tangent = _lies(later[-1])
        about = self.constant, self.written, tangent, self.donates
        return CompiledHalves(forward, backward, outputs, *about)


def _written(about: Any) -> tuple[int, ...] | None:
    """See ``Seen``, of what AOTAutograd says about forward."""
    if about.num_mutated_inp_runtime_indices:  # whose new values forward gives
        return None
    written = {*about.mutated_graph_handled_indices}
    if any(info.base_idx in written for info in about.output_info if _is_of_input(info)):
        return None
    return tuple(about.mutated_graph_handled_indices_seen_by_autograd)


def _is_of_input(info: Any) -> bool:
    """Whether an output is an input, or a view of one."""
    from torch._functorch._aot_autograd.schemas import OutputType

    return info.output_type in (OutputType.is_input, OutputType.alias_of_input)


def _taken(graph: fx.Graph) -> list[fx.Node]:
    return [*graph.find_nodes(op="placeholder")]


def _given(graph: fx.Graph) -> Sequence[Any]:
    given = graph.output_node().args[0]
    assert isinstance(given, Sequence)
    return given


def _lies(node: fx.Node) -> Any:
    value = node.meta["val"]
    return value.shape, value.stride(), value.dtype


def _is_like(one: Any, other: fx.Node) -> bool:
    if not isinstance(one, fx.Node):
        return False
    are_tensors = (isinstance(node.meta.get("val"), torch.Tensor) for node in (one, other))
    return all(are_tensors) and _lies(one) == _lies(other)


@dataclass
class CompiledHalves:
    """Those of a graph one of whose outputs has a gradient.

    Attributes:
        forward: gives the outputs, then what backward needs.
        backward: takes that and the gradient; gives those of all that forward takes, or None.
        outputs: how many there are.
        constant: the numbers of those without a gradient.
        written: the numbers of what forward takes and writes to.
        tangent: shape, strides and dtype of the gradient that backward takes.
        donates: whether backward writes over what it is given.
        own: the places of gradients that have memory of their own and lie as parameters do, which
            is the same in each step; None: none was made yet.
        copied: of those that are copied for that.
    """

    forward: Half
    backward: Half
    outputs: int
    constant: tuple[int, ...]
    written: tuple[int, ...]
    tangent: Any
    donates: bool
    own: frozenset[int] | None = None
    copied: frozenset[int] = frozenset()

    def run(
        self, taken: Sequence[torch.Tensor], trained: Trained, places: Sequence[int | None]
    ) -> Sequence[torch.Tensor] | None:
        """The outputs for these tensors, of which those at ``places`` are of what is trained; None:
        not now, see ``run_as_one_node``."""
        return run_as_one_node(_Step(self, taken, trained, places))

    def see_own(
        self,
        gradients: Sequence[torch.Tensor | None],
        trained: Trained,
        places: Sequence[int | None],
        taken: Sequence[torch.Tensor],
    ) -> None:
        """Finds those gradients that are ``own``, and none of what was ``taken``."""
        own = those_apart(gradients, trained.tensors, trained.views, taken)
        copied = those_besides(own, gradients, trained.tensors)
        found = (
            {place for n in numbers if (place := places[n]) is not None}
            for numbers in (own, copied)
        )
        self.own, self.copied = map(frozenset, found)


class _Step:
    """One that runs."""

    def __init__(
        self, halves: CompiledHalves, taken: Sequence[Any], trained: Trained, places: Sequence[Any]
    ) -> None:
        self.trained = trained
        self.halves = halves
        self._taken: Sequence[torch.Tensor] = taken
        self._places = places
        self._saved: list[torch.Tensor] | None = None
        self._versions: list[int] = []

    def given(self, gate: torch.Tensor, given: Given) -> Given:
        """See ``NodeCall``."""
        return given

    def forward(self) -> tuple[Sequence[torch.Tensor], Sequence[int]]:
        """See ``NodeCall``."""
        if self.halves.written:
            increment_version([self._taken[number] for number in self.halves.written])
        with _C._DisableAutocast():
            made = self.halves.forward([*self._taken])
        outputs, saved = made[: self.halves.outputs], made[self.halves.outputs :]
        # Not the outputs themselves, which have the node that has this.
        own = {*map(id, outputs)}
        if not own.isdisjoint(map(id, saved)):
            saved = [tensor.detach() if id(tensor) in own else tensor for tensor in saved]
        self._saved = [*saved]
        self._versions = [*map(_VERSION, self._saved)]
        if self.halves.own is not None:
            self._taken = ()
        return outputs, self.halves.constant

    def backward(
        self, tangents: Sequence[torch.Tensor | None], given: Given, *, keeps: bool
    ) -> Sequence[torch.Tensor | None]:
        """See ``NodeCall``."""
        saved = self._taken_back(keeps)
        (tangent,) = [tangent for tangent in tangents if tangent is not None]
        tangent = _laid_out(tangent, *self.halves.tangent)
        saved.append(tangent)
        with _C._DisableAutocast():
            made = self.halves.backward(saved)
        gradients = [None if place is None else made[place] for place in self._places]
        if keeps:  # what is saved may be a gradient
            return given.rest(gradients)
        halves, trained = self.halves, self.trained
        if halves.own is None:
            halves.see_own(gradients, trained, self._places, [*self._taken, tangent])
        assert halves.own is not None
        self._taken = ()
        copied = [n for n, place in enumerate(self._places) if place in halves.copied]
        copied_as_parts(copied, gradients, trained.tensors, trained.views)
        own = [n for n, place in enumerate(self._places) if place in halves.own]
        given.take_those([*own, *copied], gradients)
        return given.rest(gradients)

    def _taken_back(self, keeps: bool) -> list[torch.Tensor]:
        """What was saved, which is let go unless the graph is kept."""
        saved = self._saved
        if saved is None:
            raise freed_error()
        if torch.is_grad_enabled():
            raise RuntimeError(
                "torch.compile with aot_autograd does not currently support double backward: "
                "create_graph=True has second derivatives where the module is parallelized "
                "without compile="
            )
        if keeps and self.halves.donates:
            raise RuntimeError(
                "This backward function was compiled with non-empty donated buffers which requires "
                "create_graph=False and retain_graph=False: what forward saved is written over; "
                "set torch._functorch.config.donated_buffer = False before the module is made, or "
                "parallelize without compile="
            )
        if [*map(_VERSION, saved)] != self._versions:
            raise changed_error()
        if keeps:
            return [*saved]
        self._saved = None
        return saved


def _laid_out(
    tangent: torch.Tensor, size: Any, strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    if tangent.stride() == strides and tangent.dtype == dtype:
        return tangent
    return torch.empty_strided(size, strides, dtype=dtype, device=tangent.device).copy_(tangent)
