"""Where another graph of a model is cut, whose parameters and buffers stages have already."""

from __future__ import annotations

import pytest

from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.frontend.call_context import CallContext
from tensoropt_torch.stages import cut_graph, owned_cuts
from tests.stages.models import make


def owned_of(captured: CapturedModel, cuts: list[int]) -> list[frozenset[str]]:
    """By part."""
    return [
        frozenset(
            source.names[0]
            for source in graph.captured.sources
            if source.kind in ("parameter", "constant")
        )
        for graph in cut_graph(captured, cuts)
    ]


@pytest.mark.parametrize("cuts", [[1, 4, 12], [4, 12], [12]])
def test_what_is_written_into_a_buffer_is_computed_before_it_or_with_it(cuts: list[int]) -> None:
    case = make("mixture")
    owned = owned_of(capture(case.model, case.args, **case.keywords), cuts)
    context = CallContext(gradients=False)
    evaluated = capture(case.model.eval(), case.args, **case.keywords, context=context)
    graphs = cut_graph(evaluated, owned_cuts(evaluated, owned))
    for graph, own in zip(graphs, owned, strict=True):
        taken = {s.names[0] for s in graph.captured.sources if s.kind in ("parameter", "constant")}
        assert taken <= own


@pytest.mark.parametrize("cuts", [[3, 12, 20], [1, 4, 12], [4, 12, 16]])
def test_uses_of_a_buffer_stay_together_where_stages_have_several_parts(cuts: list[int]) -> None:
    case = make("mixture")
    parts = owned_of(capture(case.model, case.args, **case.keywords), cuts)
    owned = [parts[part % 2] | parts[part % 2 + 2] for part in range(4)]
    context = CallContext(gradients=False)
    evaluated = capture(case.model.eval(), case.args, **case.keywords, context=context)
    graphs = cut_graph(evaluated, owned_cuts(evaluated, owned))
    (users,) = [
        number
        for number, graph in enumerate(graphs)
        if any("average" in source.names for source in graph.captured.sources)
    ]
    assert "average" in owned[users]
