"""A copy of the model with the weights of a parallel module."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import tensoropt_torch
from tensoropt_torch import Example, TensorOptError, find_frontier, parallelize
from tests.distributed.harness import run_ranks
from tests.integrations.models import VOCABULARY, gpt2

HERE = "tests.distributed.checkpoint.test_whole_model"


def made_parallel(model: nn.Module, *inputs: torch.Tensor) -> tensoropt_torch.ParallelModule:
    """Under the plan of least memory."""
    example = Example(model, inputs)
    return parallelize(example, find_frontier(example, measure=False).smallest.plan)


def generates(_: None) -> None:
    reference, ids = gpt2(use_cache=False), torch.arange(48).reshape(4, 12) % VOCABULARY
    parallel = made_parallel(copy.deepcopy(reference), ids)
    for model in (parallel, reference):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(ids).logits.square().mean().backward()
        optimizer.step()
    parallel.eval(), reference.eval()
    copied = tensoropt_torch.whole_model(parallel)
    assert type(copied) is type(reference)
    assert copied.lm_head.weight is copied.transformer.wte.weight
    assert not copied.training
    torch.testing.assert_close(copied.state_dict(), reference.state_dict())
    prompt = {"input_ids": ids[:, :4], "attention_mask": torch.ones(4, 4, dtype=torch.long)}
    settings = {"use_cache": True, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    found = copied.generate(**prompt, **settings)
    assert torch.equal(found, reference.generate(**prompt, **settings))
    with pytest.raises(TensorOptError, match=r"whole_model\(parallel\)"):
        parallel.generate(**prompt, **settings)
    before = parallel(ids).logits
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    assert torch.equal(parallel(ids).logits, before)


def test_a_copy_generates_what_the_model_does() -> None:
    run_ranks(2, f"{HERE}:generates")


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = parametrizations.weight_norm(nn.Linear(8, 16))
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


def keeps_buffers(_: None) -> None:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    reference = Normed()
    parallel = made_parallel(copy.deepcopy(reference), x)
    copied = tensoropt_torch.whole_model(parallel)
    torch.testing.assert_close(copied(x), reference(x))
    assert int(parallel.norm.num_batches_tracked) == 0
    parallel(x)
    copied = tensoropt_torch.whole_model(parallel)
    torch.testing.assert_close(copied.state_dict(), reference.state_dict())


def test_buffers_and_parametrised_weights_are_those_of_now() -> None:
    run_ranks(2, f"{HERE}:keeps_buffers")


def with_hook() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model[1].register_forward_hook(lambda module, args, output: 2 * output)
    return model


class Listing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.steps = [self.first, torch.relu]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return x


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "hook": (with_hook, "module '1' of the model has hooks"),
    "list": (Listing, "module 'Listing' of the model keeps a module .* attribute 'steps'"),
}


def refuses(name: str) -> None:
    model, words = REFUSED[name]
    parallel = made_parallel(model(), torch.randn(4, 8))
    with pytest.raises(TensorOptError, match=words):
        tensoropt_torch.whole_model(parallel)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_copy_would_lack_is_refused(name: str) -> None:
    run_ranks(2, f"{HERE}:refuses", name)
