"""What enters a captured graph: parameters, buffers, constants and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import fx, nn
from torch.export.graph_signature import ConstantArgument, InputKind

from tensoropt_torch.frontend.passes import BLOCKS, BUFFER, FOLDED, WANTED_BLOCKS, Blocks

SourceKind = Literal["parameter", "constant", "input", "literal", "total"]

# Where the wrapper that is exported holds the user's module.
PREFIX = "model."


@dataclass(frozen=True)
class Source:
    """A placeholder of the captured graph.

    ``names`` are the qualified names in the user's module (several for a tied
    parameter), or the name of the input. A ``literal`` is a non-tensor input,
    fixed at capture; a ``total`` is what a micro-batch gets of the whole batch.
    """

    placeholder: fx.Node
    kind: SourceKind
    names: tuple[str, ...]

    @property
    def blocks(self) -> Blocks | None:
        """How a parameter is seen in the graph, if it is not as it is."""
        return self.placeholder.meta.get(BLOCKS)

    @property
    def is_folded(self) -> bool:
        """Whether it is a constant of this graph only, which capture computed."""
        return FOLDED in self.placeholder.meta

    def as_seen(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the source's shape in the one in which the graph takes it."""
        return tensor if self.blocks is None else tensor.view(self.blocks.apart(tensor.shape))


def exported_sources(
    exported: torch.export.ExportedProgram,
    input_names: Sequence[str],
    differentiable: Sequence[bool],
    trained: bool,
) -> tuple[Source, ...]:
    """The sources of an exported program; placeholders of tied tensors become one. Unless
    it is ``trained``, none requires a gradient; else those inputs that are ``differentiable``:
    export may mark others too."""
    state = {**exported.state_dict, **exported.constants}
    aliases: dict[int, list[str]] = {}
    for name, tensor in state.items():
        aliases.setdefault(id(tensor), []).append(name.removeprefix(PREFIX))
    placeholders = exported.graph_module.graph.find_nodes(op="placeholder")
    specs = exported.graph_signature.input_specs
    by_tensor: dict[int, fx.Node] = {}
    given = iter(zip(input_names, differentiable, strict=True))
    sources = []
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind == InputKind.USER_INPUT:
            literal = isinstance(spec.arg, ConstantArgument)
            name, requires_grad = next(given)
            sources.append(Source(node, "literal" if literal else "input", (name,)))
            if not requires_grad:
                _detach(node)
            continue
        tensor = state[spec.target]
        first = by_tensor.setdefault(id(tensor), node)
        if first is not node:
            node.replace_all_uses_with(first)
            exported.graph_module.graph.erase_node(node)
            continue
        parameter = spec.kind == InputKind.PARAMETER
        node.meta[BUFFER] = not parameter
        kind: SourceKind = "parameter" if parameter else "constant"
        sources.append(Source(node, kind, tuple(aliases[id(tensor)])))
    if not trained:
        for source in sources:
            _detach(source.placeholder)
    return tuple(sources)


def want_blocks(sources: Sequence[Source], blocks: Mapping[str, Blocks]) -> None:
    """Parameters will be seen in the graph by these blocks, by first name, and all others as
    they are."""
    for source in sources:
        if source.kind == "parameter":
            source.placeholder.meta[WANTED_BLOCKS] = blocks.get(source.names[0])


def _detach(placeholder: fx.Node) -> None:
    value = placeholder.meta.get("val")
    if isinstance(value, torch.Tensor):
        placeholder.meta["val"] = value.detach()


def folded_sources(graph: fx.Graph) -> tuple[Source, ...]:
    """The constants that the passes have computed."""
    nodes = [node for node in graph.find_nodes(op="placeholder") if FOLDED in node.meta]
    return tuple(Source(node, "constant", (node.name,)) for node in nodes)


def constants_of(
    exported: torch.export.ExportedProgram, folded: tuple[Source, ...]
) -> dict[str, torch.Tensor]:
    """The tensors of the sources that are constants, by all of their names."""
    state = {**exported.state_dict, **exported.constants}
    constants = {
        name.removeprefix(PREFIX): tensor
        for name, tensor in state.items()
        if isinstance(tensor, torch.Tensor) and not isinstance(tensor, nn.Parameter)
    }
    return constants | {source.names[0]: source.placeholder.meta[FOLDED] for source in folded}
