"""Recomputation changes no bit, runs what it says, and keeps less."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.harness import run_ranks
from tests.distributed.recomputation import Run

RUNS = "tests.distributed.recomputation:runs"

MODELS = ["gpt", "lstm", "resnet"]
MORE = ["llama", "transformer", "mlp", "vgg", "gru", "mixture", "gpt_tied", "recommender", "mixed"]


def check(model: str) -> None:
    (found,) = run_ranks(1, RUNS, model, 500)
    plain: Run = found[0]
    others: list[Run] = found[1:]
    assert not plain.calls
    assert not plain.expected
    for run in others:
        trace, expected = run.trace, plain.trace
        assert trace.losses == expected.losses, run.plan
        for kind in ("gradients", "parameters", "buffers"):
            ours, theirs = getattr(trace, kind), getattr(expected, kind)
            assert ours.keys() == theirs.keys()
            for name, tensor in theirs.items():
                assert torch.equal(ours[name], tensor), f"{run.plan}: {kind} of {name}"
        # A random strategy may let something run again that nobody asks for.
        assert run.calls <= run.expected, run.plan
        if run.plan.startswith("point"):
            assert run.calls == run.expected, run.plan
    assert any(run.calls for run in others)
    assert min(run.memory_bytes for run in others) < plain.memory_bytes


@pytest.mark.parametrize("model", MODELS)
def test_some_models_train_with_the_bits_of_a_plan_that_keeps_all(model: str) -> None:
    check(model)


@pytest.mark.slow
@pytest.mark.parametrize("model", MORE)
def test_models_train_with_the_bits_of_a_plan_that_keeps_all(model: str) -> None:
    check(model)
