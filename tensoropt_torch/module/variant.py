"""One graph of a parallel module, with its strategy: what calls of one kind run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.parameters.local_parts import local_parts, local_tensor
from tensoropt_torch.parameters.written_parts import WrittenParts
from tensoropt_torch.plan import Plan, VariantStrategy
from tensoropt_torch.plan.rows import OutputRows
from tensoropt_torch.runtime import reuse
from tensoropt_torch.runtime.remade import address_of

Place = tuple[Mapping[str, torch.Tensor | None], str]
RunGraph = Callable[[fx.GraphModule, Sequence[Any]], Any]


class Variant:
    """A graph of one rank.

    Args:
        plan: its strategy.
        captured: the graph that it is of.
        graph: takes sources in the order of ``captured``, then the seed of the step.
        root: has the parameters and the buffers, by name.
        tables: what the graph has besides: computed once, at capture; by name.
        uses_seeds: whether the graph draws random numbers.
        views: the shapes in which the graph takes local parts that it sees in another shape
            than they have, by name.
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
    ) -> None:
        self.plan = plan
        self.captured = captured
        self.graph = graph
        self.tables = tables
        self.uses_seeds = uses_seeds
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

    @property
    def input_names(self) -> list[str]:
        """What the inputs are called, literals included."""
        return [source.names[0] for source in self.captured.inputs]

    def run(
        self, inputs: Sequence[Any], seed: int, run_graph: RunGraph, numbers: tuple[Any, ...] = ()
    ) -> Any:
        """The outputs for these inputs, literals included, in the containers of the model;
        ``run_graph`` calls the graph, which may take ``numbers`` besides."""
        tensors = self._own()
        written = WrittenParts(tensors)
        rest, own = iter(inputs), iter(local_parts(tensors, self._own_views))
        values = [next(rest) if place is None else next(own) for place in self._places]
        with reuse.ReuseRegistry(self.plan.settings.overlap, self.name_of):
            outputs = run_graph(self.graph, (*values, seed, *([numbers] if numbers else ())))
        written.watch(outputs)
        return pytree.tree_unflatten(list(outputs), self.captured.out_spec)

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Of which parameter or buffer a tensor is a view."""
        for source, place in zip(self.captured.sources, self._places, strict=True):
            own = None if place is None else local_tensor(place[0][place[1]])
            if own is not None and own.untyped_storage()._cdata == address_of(tensor):
                return f"{source.kind} '{source.names[0]}'"
        return None

    def written_on(self, modules: Mapping[tuple[str, bool], nn.Module]) -> None:
        """What forward writes into attributes gets into those of these modules."""
        self._modules = modules

    def put_back(self, outputs: Any) -> Any:
        """What the model returns, of what ``run`` gives; the rest gets into attributes."""
        written = self.captured.attributes.written
        if written is None:
            return outputs
        result, tensors = outputs
        written.put_back(self._modules, tensors)
        return result

    def _own(self) -> list[torch.Tensor]:
        """The parameters, buffers and tables, in the order of the sources."""
        return [place[0][place[1]] for place in self._places if place is not None]  # type: ignore[misc]

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
