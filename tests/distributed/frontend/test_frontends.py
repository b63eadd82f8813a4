"""What stands for a module elsewhere runs as the module does."""

import copy
from typing import Any

import pytest
import torch

import tensoropt_torch
from benchmarks.coverage.bits import loss_of
from benchmarks.coverage.zoo import make
from tensoropt_torch import ParallelModule
from tests.distributed.harness import run_ranks

MODEL = "gpt2"  # tied weights, masks of its own, an output with a loss


def make_parallel(way: str, example: Any) -> ParallelModule:
    """Of an exported program or the module itself."""
    model, args = example.model, example.args
    if way == "module":
        return tensoropt_torch.auto_parallel(model, args, example.kwargs, measure=False)
    program = torch.export.export(model, args, dict(example.kwargs), strict=False)
    return tensoropt_torch.auto_parallel(program, measure=False)


def train_once(way: str) -> list[str]:
    """What differs from one process: loss, gradients, names of buffers."""
    example = make(MODEL)
    # One tensor under two names would become one input in ``torch.export``.
    example.kwargs = {name: value.clone() for name, value in example.kwargs.items()}
    alone = copy.deepcopy(example)
    expected = loss_of(alone.output())
    expected.backward()
    parallel = make_parallel(way, example)
    output = parallel(**example.kwargs)
    output.loss.backward()
    wrong = [] if torch.allclose(output.loss, expected) else ["loss"]
    gradients = {name: p.grad.full_tensor() for name, p in parallel.named_parameters()}
    for name, parameter in alone.model.named_parameters():
        if not torch.allclose(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6):
            wrong.append(name)
    names = {name for name, _ in alone.model.named_buffers()}
    if names != {name for name, _ in parallel.named_buffers()}:
        wrong.append("names of buffers")
    return wrong


@pytest.mark.parametrize("way", ["module", "exported program"])
def test_a_hugging_face_model_trains_as_in_one_process(way: str) -> None:
    function = "tests.distributed.frontend.test_frontends:train_once"
    assert run_ranks(2, function, way, 200.0) == [[], []]
