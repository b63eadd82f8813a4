"""A model of Hugging Face some of whose values have no elements: the rotary embedding of
Phi-3 turns all dims of a head and passes on the rest."""

from __future__ import annotations

import pytest

from benchmarks.coverage.ranks import Job
from benchmarks.coverage.zoo import make
from tensoropt_torch.frontend import capture
from tests.distributed.harness import PRELOADED, run_ranks

pytest.importorskip("transformers")


def test_phi3_has_values_without_elements() -> None:
    example = make("phi3")
    captured = capture(example.model, **example.keywords)
    shapes = [tuple(n.meta["val"].shape) for n in captured.graph_module.graph.nodes if _is_one(n)]
    assert any(0 in shape for shape in shapes)


def _is_one(node: object) -> bool:
    return hasattr(getattr(node, "meta", {}).get("val"), "shape")


@pytest.mark.slow
def test_strategies_of_phi3_equal_one_process() -> None:
    preloaded = (*PRELOADED, "benchmarks.coverage.ranks")
    job = Job("phi3", strategies=6)
    for count, wrong in run_ranks(2, "benchmarks.coverage.ranks:check", job, 300, preloaded):
        assert count == 6
        assert not wrong, wrong
