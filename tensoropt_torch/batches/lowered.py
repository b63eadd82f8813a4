"""A captured model with another graph in place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.frontend.lazy_code import graph_module
from tensoropt_torch.frontend.lowering import lower


def lowered(captured: CapturedModel, graph: fx.Graph, sources: Sequence[Source]) -> CapturedModel:
    """The model with this graph, whose placeholders are ``sources``."""
    kinds = {s.placeholder: (s.kind, s.names[0]) for s in sources}
    module = graph_module(captured.graph_module, graph)
    assert module.graph is graph
    return replace(
        captured,
        graph_module=module,
        sources=tuple(sources),
        lowering=lower(graph, kinds),
    )
