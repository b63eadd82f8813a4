"""One graph of a parallel module, with its strategy: what calls of one kind run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from operator import attrgetter, is_
from typing import Any

import torch
from torch import fx, nn

from tensoropt_torch import emit
from tensoropt_torch.emit.boxed import BoxedStep
from tensoropt_torch.emit.hooked import HookedGraph
from tensoropt_torch.emit.one_node import Trained
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.emit.written import changed_inputs
from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.module.micro_batched import Gather, MicroBatched
from tensoropt_torch.module.reached import Reach
from tensoropt_torch.parameters.local_parts import local_parts, local_tensor, parts_as_they_are
from tensoropt_torch.plan import Plan, VariantStrategy
from tensoropt_torch.runtime.agreement import confirm_call
from tensoropt_torch.runtime.remade import address_of
from tensoropt_torch.runtime.reuse import ReuseRegistry
from tensoropt_torch.space.rows import OutputRows

_REQUIRES_GRAD = attrgetter("requires_grad")
Place = tuple[Mapping[str, torch.Tensor | None], str]


class Variant:
    """A graph of one rank, and what it takes of a module; an executor runs it (``executor.py``).

    Args:
        plan: its strategy.
        captured: the graph that it is of.
        graph: takes sources in the order of ``captured``, then the seed of the step.
        root: has the parameters and the buffers, by name.
        tables: what the graph has besides: computed once, at capture; by name.
        uses_seeds: whether the graph draws random numbers.
        views: the shapes in which the graph takes local parts that it sees in another shape
            than they have, by name.
        gathers: of the sources that totals of micro-batches are made of and of which each rank
            has a share.

    Attributes:
        forward: what the graph does, however it is called.
        own_numbers: of the sources that are of the module, and of no call.
        batch: how micro-batches, of one of which the graph is, make a step; None: the graph is
            that of the batch.
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
        gathers: Mapping[int, Gather] | None = None,
    ) -> None:
        self.plan = plan
        self.captured = captured
        self.graph = graph
        self.make_forward: Callable[[], Callable[..., Sequence[Any]]] = lambda: graph.forward
        self.tables = tables
        self.uses_seeds = uses_seeds
        self.boxed: BoxedStep | None = None  # for steps that do nothing besides, too
        self.whole: emit.WholeGraph | None = None  # compiled, for steps that do nothing besides
        self.make_cut: Callable[[bool], emit.CutGraph | None] = lambda reduces: None
        self._cuts: dict[bool, emit.CutGraph | None] = {}
        self._passes: dict[Hashable, BoxedStep] = {}
        self.reach: Reach | None = None  # of what is compiled, whose backward does not tell
        self.strategy: VariantStrategy | None = None  # if it is not the plan's
        self.output_rows: tuple[OutputRows, ...] = ()
        self.input_rows: tuple[int | None, ...] = ()  # the dim of each, None: none
        self._modules: Mapping[tuple[str, bool], nn.Module] = {}
        # Those that are attributes of the model may be changed in place later.
        theirs = {s.names[0] for s in captured.sources if not s.is_folded} & tables.keys()
        self.constants = {
            name: tensor.clone() if name in theirs else tensor
            for name, tensor in captured.constants.items()
        }
        self._places = [self._place(source, root) for source in captured.sources]
        self._views = [views.get(source.names[0]) for source in captured.sources]
        own = zip(self._places, self._views, strict=True)
        self._own_views = [view for place, view in own if place is not None]
        self._own_places = [place for place in self._places if place is not None]
        numbers = range(len(self._places))
        self.own_numbers = [number for number in numbers if self._places[number] is not None]
        self._given_numbers = [number for number in numbers if self._places[number] is None]
        places = {n: place for place, n in enumerate((*self.own_numbers, *self._given_numbers))}
        self._order = [places[number] for number in numbers]
        self._known_trained: tuple[Sequence[torch.Tensor], Sequence[bool], Trained] | None = None
        micro = captured.micro_batching
        self.batch: MicroBatched | None = None
        if micro is not None:
            self.batch = MicroBatched(captured, micro, gathers or {}, _device_of(root))

    @property
    def input_names(self) -> list[str]:
        """What the inputs are called, literals included."""
        return [source.names[0] for source in self.captured.inputs]

    @property
    def is_compiled_whole(self) -> bool:
        """Whether steps that do nothing besides run a graph that is compiled as a whole."""
        return self.whole is not None and not self.whole.reason

    def cut(self, reduces: bool) -> emit.CutGraph | None:
        """The graph that is compiled for steps that keep gradients, or add up those of
        micro-batches, and with ``reduces`` send them to their parameters; None: there is none.
        Collective."""
        if self.whole is None:
            return None
        if reduces not in self._cuts:
            confirm_call()
            self._cuts[reduces] = self.make_cut(reduces)
        return self._cuts[reduces]

    @cached_property
    def forward(self) -> Callable[..., Sequence[Any]]:
        """The graph as a function, made for the first step that is not recorded."""
        return self.make_forward()

    @cached_property
    def hooked(self) -> HookedGraph:
        """The graph for steps that do more than run it once."""
        return HookedGraph.of(self.graph)

    def boxed_pass(self, key: Hashable) -> BoxedStep | None:
        """The graph as one function in passes that keep gradients, or that reduce them with what
        was kept; None: it is to run as it is. It takes the values that are held, and a sink,
        besides. The key says which gradients stay and which go on."""
        if self.boxed is None:
            return None
        if key not in self._passes:
            graph, held = HookedGraph.to_record(self.graph)
            own = [*self.own_numbers, *held]
            self._passes[key] = BoxedStep(graph, own, self.registry, True)
        return self._passes[key]

    @cached_property
    def written_places(self) -> list[tuple[MutableMapping[str, torch.Tensor], str]]:
        """Where buffers are found that forward writes to."""
        changed, _ = changed_inputs(self.graph.graph)
        places = (self._places[number] for number in changed if number < len(self._places))
        return [place for place in places if place is not None]  # type: ignore[misc]

    def own_tensors(self) -> list[torch.Tensor]:
        """The parameters, buffers and tables, in the order of the sources."""
        return [tensors[name] for tensors, name in self._own_places]  # type: ignore[misc]

    def values(self, inputs: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
        """What the graph takes of all sources: these inputs, literals included, and what the
        rank has of ``tensors``, which are the own ones. Gradients find their way back to them."""
        rest, own = iter(inputs), iter(local_parts(tensors, self._own_views))
        return [next(rest) if place is None else next(own) for place in self._places]

    def boxed_outputs(
        self, inputs: Sequence[Any], tensors: Sequence[torch.Tensor], *rest: Any
    ) -> Any:
        """The outputs for these inputs and own tensors, of the graph as one function; None: it
        is to run as it is. ``rest`` is what it takes after all sources."""
        compiled = self.whole if self.reach is not None and not self.reach.partly else None
        if self.boxed is None and (compiled is None or not compiled.is_at_once):
            return None
        values, trained = self.boxed_values(inputs, tensors, *rest)
        if compiled is not None:
            return compiled.outputs_at_once(values, trained)
        assert self.boxed is not None
        return self.boxed.forward(values, trained, self.again(self.forward, inputs, tensors, *rest))

    def boxed_values(
        self, inputs: Sequence[Any], tensors: Sequence[torch.Tensor], *rest: Any
    ) -> tuple[list[Any], Trained]:
        """What the graph takes, without gradients, and what has some."""
        apart = [*parts_as_they_are(tensors, self._own_views), *inputs]
        values = [apart[place] for place in self._order]
        trained = self._own_trained(tensors)
        found = [
            (number, value, None)
            for number, value in zip(self._given_numbers, inputs, strict=True)
            if isinstance(value, torch.Tensor) and value.requires_grad
        ]
        return [*values, *rest], trained.and_those(found) if found else trained

    def _own_trained(self, tensors: Sequence[torch.Tensor]) -> Trained:
        """Of these own tensors: that of the call before unless others are trained since then."""
        flags = [*map(_REQUIRES_GRAD, tensors)]
        known = self._known_trained
        if known is not None and flags == known[1] and all(map(is_, tensors, known[0])):
            return known[2]
        own = zip(flags, self.own_numbers, tensors, self._own_views, strict=True)
        found = [(n, tensor, view) for is_trained, n, tensor, view in own if is_trained]
        rest = zip(flags, tensors, strict=True)
        trained = Trained.of(found, [tensor for is_trained, tensor in rest if not is_trained])
        self._known_trained = [*tensors], flags, trained
        return trained

    def again(
        self,
        forward: Callable[..., Sequence[Any]],
        inputs: Sequence[Any],
        tensors: Sequence[torch.Tensor],
        *rest: Any,
    ) -> Callable[[], Any]:
        """Runs forward once more, as autograd sees it."""
        assert self.boxed is not None
        changed = self.boxed.changed

        def again() -> Any:
            own = [*self.values(inputs, tensors), *rest]
            with self.registry():
                return forward(*[v.clone() if n in changed else v for n, v in enumerate(own)])

        return again

    def registry(self) -> ReuseRegistry:
        """The context of one forward."""
        return ReuseRegistry(self.plan.settings.overlap, self.name_of)

    def detached_values(self, inputs: Sequence[Any]) -> list[Any]:
        """As ``values``, with totals, of the whole batch; gradients go nowhere. Collective."""
        assert self.batch is not None
        rest = iter(inputs)
        values: list[Any] = []
        places = zip(self.captured.sources, self._places, self._views, strict=True)
        for source, place, view in places:
            if source.kind == "total":
                continue
            if place is None:
                values.append(next(rest))
                continue
            tensor = place[0][place[1]]
            assert tensor is not None
            local = local_tensor(tensor).detach()
            values.append(local if view is None else local.view(view))
        return [*values, *self.batch.totals(values)]

    def trained(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The parameters that require gradients, with the numbers of their sources."""
        places = zip(self.captured.sources, self._places, strict=True)
        for number, (source, place) in enumerate(places):
            if source.kind == "parameter" and place is not None:
                parameter = place[0][place[1]]
                if parameter is not None and parameter.requires_grad:
                    yield number, parameter

    def by_name(self, values: Sequence[Any]) -> Mapping[str, Any]:
        """What the graph takes of all sources, by their first names."""
        return {name: values[number] for name, number in self._numbers.items()}

    def parameter(self, name: str) -> torch.Tensor:
        """The one of a source's first name."""
        place = self._places[self._numbers[name]]
        assert place is not None
        parameter = place[0][place[1]]
        assert parameter is not None
        return parameter

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {source.names[0]: number for number, source in enumerate(self.captured.sources)}

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The name of the parameter or buffer of which a tensor is a view."""
        for source, place in zip(self.captured.sources, self._places, strict=True):
            own = None if place is None else local_tensor(place[0][place[1]])
            if own is not None and own.untyped_storage()._cdata == address_of(tensor):
                return f"{source.kind} '{source.names[0]}'"
        return None

    def written_on(self, modules: Mapping[tuple[str, bool], nn.Module]) -> None:
        """What forward writes into attributes gets into those of these modules."""
        self._modules = modules

    def put_back(self, outputs: Any) -> Any:
        """What the model returns, of what a step gives; the rest gets into attributes."""
        written = self.captured.attributes.written
        if written is None:
            return outputs
        result, tensors = outputs
        written.put_back(self._modules, tensors)
        return result

    def _place(self, source: Source, root: nn.Module) -> Place | None:
        """Where a parameter or a constant is found; None for an input."""
        if source.kind in ("input", "literal", "total"):
            return None
        name = source.names[0]
        if name in self.tables:
            return self.tables, name
        path, _, leaf = name.rpartition(".")
        owner = root.get_submodule(path)
        own = owner._parameters if source.kind == "parameter" else owner._buffers
        return own, leaf


def variant_of(
    part: RankPart,
    graph: fx.GraphModule,
    root: nn.Module,
    tables: Mapping[str, torch.Tensor],
    uses_seeds: bool,
    group_name: Callable[[int], str],
    *,
    whole_inputs: bool = False,
) -> Variant:
    """The variant that runs the graph of a rank's part; ``whole_inputs``: the rank has them whole,
    so that none is gathered."""
    sources = part.captured.sources
    gathers = {
        number: Gather(steps, [group_name(axes) for axes in sets])
        for number, (steps, sets) in part.gathers.items()
        if not (whole_inputs and sources[number].kind == "input")
    }
    own = part.plan, part.captured, graph, root, tables, uses_seeds, part.views
    return Variant(*own, gathers)


def _device_of(root: nn.Module) -> torch.device:
    tensor = next(root.parameters())
    return local_tensor(tensor).device  # type: ignore[no-any-return]
