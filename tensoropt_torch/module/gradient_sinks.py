"""What becomes of gradients of parameters where the programs begin that send them there.

In a pass whose backward is that of autograd they go to ``.grad``, or take along what is
there (``PassSink``). Those of the micro-batches of a step are added up (``StepSink``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement

from tensoropt_torch.emit.hooked import HookedGraph
from tensoropt_torch.module.reached import ReachedGradients
from tensoropt_torch.parameters.kept_gradients import keep, with_kept
from tensoropt_torch.parameters.local_parts import as_whole, is_for_grad, own_gradient
from tensoropt_torch.program.edges import GradientEdge
from tensoropt_torch.program.reshards import Program
from tensoropt_torch.runtime.ops import reshard
from tensoropt_torch.values.placements import placements_of

Gradients = tuple[torch.Tensor | None, ...]
Programs = Mapping[str, Program]
Reduced = Callable[[Mapping[str, torch.Tensor], Programs], dict[str, torch.Tensor] | None]
Borders = Mapping[str, tuple[GradientEdge, Program]]


def placements_at(edge: GradientEdge, parameter: DTensor) -> tuple[Placement, ...]:
    """The placements of the gradient where it passes the sink."""
    return tuple(placements_of(edge.layout, edge.blocks, parameter.device_mesh.shape))


def together(edge: GradientEdge, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as the parameter is seen by users, not by blocks."""
    blocks = edge.blocks
    return gradient if blocks is None else gradient.reshape(blocks.together(gradient.shape))


@dataclass(frozen=True)
class PassSink:
    """Of one pass of backward by autograd.

    Attributes:
        parameter: the one of a name.
        reduces: whether the programs get the gradients, with what is kept in ``.grad``;
            otherwise ``.grad`` gets them.
        reached: which parameters have gradients at all; None: all of which some come.
    """

    hooked: HookedGraph
    parameter: Callable[[str], torch.Tensor]
    reduces: bool
    reached: ReachedGradients | None = None

    def watch(self, parameter: str, node: Any) -> None:
        """See ``Sink``."""
        edge, _ = self.hooked.borders[parameter]
        whole = self.parameter(parameter)
        assert isinstance(whole, DTensor)
        placements = placements_at(edge, whole)
        accumulate = torch.autograd.graph.get_gradient_edge(whole).node

        def before_program(gradients: Gradients) -> Gradients | None:
            (gradient,) = gradients
            if gradient is None or not is_for_grad(gradient, whole, accumulate):
                return None
            if self.reached is not None and not self.reached.has(parameter):
                return (None,)
            with torch.no_grad():
                if self.reduces:
                    return (with_kept(whole, gradient, placements),)
                return (None,) if keep(whole, together(edge, gradient), placements) else None

        node.register_prehook(before_program)

    def placements(self, parameter: str) -> tuple[Placement, ...]:
        """Those of a gradient where it passes the sink."""
        edge, _ = self.hooked.borders[parameter]
        whole = self.parameter(parameter)
        assert isinstance(whole, DTensor)
        return placements_at(edge, whole)

    def with_kept(self, parameter: str, gradient: torch.Tensor) -> torch.Tensor | None:
        """What its program gets."""
        return with_kept(self.parameter(parameter), gradient, self.placements(parameter))

    def leaves(
        self, parts: Mapping[str, torch.Tensor], likes: Mapping[str, torch.Tensor], reduced: Reduced
    ) -> tuple[torch.Tensor, ...]:
        """Where the gradients of parameters end in a graph that is compiled. The rank has these
        parts of them, and ``likes`` have the shapes that gradients have there, and no memory.
        ``reduced`` sends several to their parameters, if it can."""
        given = [parts[name] for name in likes]
        leaves: tuple[torch.Tensor, ...] = _Leaves.apply(self, likes, reduced, *given)  # type: ignore[no-untyped-call]
        return leaves

    def sent(
        self, gradients: dict[str, torch.Tensor], accumulate: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Those of the gradients that go to their parameters, with what is kept; the others are
        kept. ``accumulate`` are the nodes that add them."""
        left = {}
        for name, gradient in gradients.items():
            if self.reached is not None and not self.reached.has(name):
                continue
            edge, _ = self.hooked.borders[name]
            whole = self.parameter(name)
            assert isinstance(whole, DTensor)
            places, found = placements_at(edge, whole), gradient
            if is_for_grad(gradient, whole, accumulate[name]):
                if self.reduces:
                    total = with_kept(whole, gradient, places)
                    if total is None:
                        continue
                    found = total
                else:
                    own = own_gradient(gradient, gradient.stride())
                    if keep(whole, together(edge, own), places, copy=False):
                        continue
            left[name] = found
        return left


class _Leaves(torch.autograd.Function):
    """Gradients are kept, or sent to their parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        sink: PassSink,
        likes: Mapping[str, torch.Tensor],
        reduced: Reduced,
        *parts: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sink, ctx.names, ctx.reduced = sink, list(likes), reduced
        ctx.dtypes = [part.dtype for part in parts]
        wholes = {name: sink.parameter(name) for name in likes}
        with torch.enable_grad():
            ctx.accumulate = {
                name: torch.autograd.graph.get_gradient_edge(whole).node
                for name, whole in wholes.items()
                if whole.requires_grad
            }
        return tuple(like.detach() for like in likes.values())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        own = zip(ctx.names, gradients, strict=True)
        found = {n: g for n, g in own if g is not None and n in ctx.accumulate}
        left = ctx.sink.sent(found, ctx.accumulate)
        programs = {name: ctx.sink.hooked.borders[name][1] for name in left}
        made = sent_together(left, programs, ctx.reduced)
        dtypes = zip(ctx.names, ctx.dtypes, strict=True)
        return None, None, None, *(made[n].to(d) if n in made else None for n, d in dtypes)


def sent_together(
    gradients: dict[str, torch.Tensor], programs: Programs, reduced: Reduced | None
) -> dict[str, torch.Tensor]:
    """What programs make of gradients, which are let go: in buckets, or one by one."""
    found = reduced(gradients, programs) if gradients and reduced is not None else None
    if found is not None:
        return found
    return {name: reshard(gradients.pop(name), *program) for name, program in programs.items()}


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

    def watched(self, values: Iterable[Any], leaves: Mapping[str, torch.Tensor]) -> Iterator[Any]:
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


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaf: torch.Tensor, like: torch.Tensor, name: str, sink: StepSink
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.name, ctx.sink = name, sink
        return like.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[None, None, None, None]:
        if gradient is not None:
            ctx.sink.add(ctx.name, gradient)
        return None, None, None, None


class StepSink:
    """Gradients as the consumers of parameters make them, added up over micro-batches.

    Args:
        borders: where they come by, see ``HookedGraph``.
        leaves: the parameters of this rank by name.
        kept: the names of those whose gradients are not reduced: they are added up, and stay in
            ``sums``. Of the others those are added up that the plan sums.

    Attributes:
        is_last: whether the backward that runs reduces what is added up and not kept.
        sums: of what is not reduced, in the dtypes of the parameters.
        reduced: all others.
    """

    def __init__(
        self, borders: Borders, leaves: Mapping[str, torch.Tensor], kept: Collection[str]
    ) -> None:
        self.is_last = False
        self.sums: dict[str, torch.Tensor] = {}
        self.reduced = LocalGradients()
        self._borders = borders
        self._leaves = leaves
        self._kept = kept
        self._late: set[str] = set()

    @cached_property
    def taken(self) -> tuple[str, ...]:
        """The parameters whose gradients it takes before a program gets them."""
        return tuple(name for name in self._borders if name in self._leaves and self._takes(name))

    def sent(self, is_last: bool) -> tuple[str, ...]:
        """Those of the taken whose programs get the gradients in a backward."""
        return tuple(name for name in self.taken if is_last and name not in self._kept)

    def _takes(self, parameter: str) -> bool:
        edge, _ = self._borders[parameter]
        return edge.summed or parameter in self._kept

    def watch(self, parameter: str, node: Any) -> None:
        """See ``Sink``."""
        if not self._takes(parameter):
            return

        def before_program(gradients: Gradients) -> Gradients | None:
            (gradient,) = gradients
            if gradient is None:
                return None
            with torch.no_grad():
                return (self.take(parameter, gradient),)

        node.register_prehook(before_program)

    def take(self, name: str, gradient: torch.Tensor) -> torch.Tensor | None:
        """What the program that reduces it gets: nothing but in the last micro-batch."""
        dtype, reduces = self._leaves[name].dtype, self.is_last and name not in self._kept
        kept = self.sums.get(name)
        if kept is None:
            if reduces:
                return gradient
            self._note_cast(name, gradient)
            self.sums[name] = gradient.to(dtype, memory_format=torch.contiguous_format, copy=True)
            return None
        kept.add_(gradient)
        if not reduces or name in self._late:
            return None
        del self.sums[name]
        return kept

    def _note_cast(self, name: str, gradient: torch.Tensor) -> None:
        """Its program takes no sum of another dtype than the gradient has."""
        if name not in self._kept and gradient.dtype != self._leaves[name].dtype:
            self._late.add(name)

    def take_sums(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """What is added up for these, which is no sum any more where their programs get it."""
        found = {name: self.sums[name] for name in names if name in self.sums}
        for name in found.keys() - self._late:
            del self.sums[name]
        return found

    def leaves(self, likes: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Where the gradients of parameters end in a graph that is compiled; ``likes`` have the
        shapes that they have there, and no memory."""
        return [
            _Summed.apply(self._leaves[name], like, name, self)  # type: ignore[no-untyped-call]
            for name, like in likes.items()
        ]

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """One that ended at a leaf, which is reduced when all are there."""
        if name not in self.sums and name not in self._kept:
            self._late.add(name)
        self.add_up(name, gradient)

    def add_up(self, name: str, gradient: torch.Tensor) -> None:
        """One that ended before its program."""
        kept = self.sums.get(name)
        if kept is not None:
            kept.add_(gradient)
            return
        self._note_cast(name, gradient)
        dtype, own = self._leaves[name].dtype, own_gradient(gradient, gradient.stride())
        self.sums[name] = own.to(dtype, memory_format=torch.contiguous_format)

    def reduce(self, reduced: Reduced | None = None) -> None:
        """Reduces what its own program could not take: because of its dtype, or because it ended
        at a leaf. ``reduced`` does so for several, if it can."""
        # In the order of the program, which is the same on all ranks.
        late = [name for name in self._borders if name in self._late]
        sums = {name: self.sums.pop(name) for name in late}
        programs = {name: self._borders[name][1] for name in sums}
        for name, gradient in sent_together(sums, programs, reduced).items():
            self.reduced.add(name, gradient, self._leaves[name].stride())
        left = self.sums.keys() - {*self._kept}
        assert not left, f"{sorted(left)} were never reduced"

    def gradient_of(self, name: str, parameter: torch.Tensor) -> torch.Tensor | None:
        """What waits for a parameter: its gradient, or what its consumer made of it, in the
        layout that it has there."""
        kept = self.sums.get(name)
        if kept is not None:
            edge, _ = self._borders[name]
            assert isinstance(parameter, DTensor)
            return as_whole(together(edge, kept), parameter, placements_at(edge, parameter))
        local = self.reduced.found.get(name)
        if local is None or not isinstance(parameter, DTensor):
            return local
        return as_whole(local.view(parameter._local_tensor.shape), parameter)
