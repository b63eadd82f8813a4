"""Parameters of several models, and what is assigned to a parallel module afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import TensorOptError
from tensoropt_torch.module.parallel_module import ParallelModule
from tests.distributed.harness import run_ranks
from tests.distributed.parity import whole

HERE = "tests.distributed.parameters.test_shared_parameters"


class Head(nn.Module):
    def __init__(self, trunk: nn.Module, outputs: int) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(16, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk(x).tanh()).square().mean()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(ids)).square().mean()


def batch() -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


def parallel(model: nn.Module, x: torch.Tensor, point: str = "fastest") -> ParallelModule:
    frontier = tensoropt_torch.find_frontier(model, (x,), num_devices=2, measure=False)
    return tensoropt_torch.parallelize(model, getattr(frontier, point).plan)


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(TensorOptError) as error:
        action()
    return str(error.value)


def make_two(_: None) -> dict[str, str]:
    trunk, x = nn.Linear(16, 16), batch()
    first, second = Head(trunk, 4), Head(trunk, 2)
    ours = parallel(first, x)
    told = {
        "parallelize": refusal(lambda: parallel(second, x)),
        "auto_parallel": refusal(lambda: tensoropt_torch.auto_parallel(second, (x,))),
    }
    ours(x).backward()  # goes on
    parallel(copy.deepcopy(second), x)(x).backward()
    del ours
    parallel(second, x)(x).backward()
    return told


def test_models_that_share_a_part_are_refused_as_long_as_both_are_there() -> None:
    for told in run_ranks(2, f"{HERE}:make_two"):
        for text in told.values():
            assert "Head shares 'trunk.weight' ('trunk.weight' there), 'trunk.bias'" in text
            assert "into one module" in text and "copy.deepcopy" in text


def make_again(_: None) -> list[str]:
    model, x = Head(nn.Linear(16, 16), 4), batch()
    older = parallel(model, x)
    optimizer = torch.optim.SGD(older.parameters(), lr=0.1)
    older(x).backward()
    optimizer.step()
    optimizer.zero_grad()
    newer, copied = parallel(model, x, "smallest"), parallel(copy.deepcopy(model), x)
    expected = float(model(x).detach())
    for module in (newer, copied):
        assert abs(float(module(x).detach()) - expected) < 1e-6
    torch.optim.SGD(newer.parameters(), lr=0.1).step()
    optimizer.step()  # of parameters without gradients
    assert repr(older) == "ParallelModule(ended)"
    uses: list[Callable[[], object]] = [
        lambda: older(x),
        lambda: list(older.parameters()),
        older.state_dict,
        lambda: older.head.weight,
    ]
    return [refusal(use) for use in uses]


def test_a_model_that_is_made_parallel_once_more_ends_the_older_module() -> None:
    for told in run_ranks(2, f"{HERE}:make_again"):
        assert len(told) == 4
        for text in told:
            assert "of Head ended" in text and "copy.deepcopy" in text


def tie_later(point: str) -> list[str]:
    torch.manual_seed(0)
    model, ids = Tied().double(), torch.arange(8).view(2, 4)
    one = copy.deepcopy(model)
    module = parallel(model, ids, point)
    one.out.weight = one.embed.weight
    same = module.out.weight.placements == module.embed.weight.placements
    if not same:
        text = refusal(lambda: setattr(module.out, "weight", module.embed.weight))
        assert "the plan fixes shape, dtype and layout" in text
        return [text]
    module.out.weight = module.embed.weight
    for network in (one, module):
        network(ids).backward()
    torch.testing.assert_close(whole(module.embed.weight.grad), one.embed.weight.grad)
    assert set(module.state_dict()) == set(one.state_dict())
    return []


@pytest.mark.parametrize("point", ["fastest", "smallest"])
def test_weights_that_are_tied_afterwards_are_right_or_refused(point: str) -> None:
    first, second = run_ranks(2, f"{HERE}:tie_later", point)
    assert first == second
    if point == "fastest":  # both are whole
        assert not first


def assign(_: None) -> dict[str, str]:
    x = batch()
    module = parallel(Head(nn.Linear(16, 16), 4), x, "smallest")
    own = module.head.weight
    module.head.weight = own
    uses: dict[str, Callable[[], object]] = {
        "a whole parameter": lambda: setattr(
            module.head, "weight", nn.Parameter(torch.zeros(4, 16))
        ),
        "none": lambda: setattr(module.head, "bias", None),
        "a new parameter": lambda: setattr(module.head, "scale", nn.Parameter(torch.ones(1))),
        "a new buffer": lambda: module.head.register_buffer("mask", torch.ones(1)),
        "a module": lambda: setattr(module.original, "head", nn.Linear(16, 4)),
        "a new module": lambda: module.head.add_module("inner", nn.Linear(4, 4)),
    }
    told = {name: refusal(use) for name, use in uses.items()}
    module.head.note = "free"
    module(x).backward()
    return told


def test_what_the_graph_does_not_have_cannot_be_assigned() -> None:
    for told in run_ranks(2, f"{HERE}:assign"):
        assert "'weight' of a Linear" in told["a whole parameter"]
        assert "no DTensor" in told["a whole parameter"] and "p.copy_" in told["a whole parameter"]
        assert "was replaced by None" in told["none"]
        for name in ("a new parameter", "a new buffer", "a new module"):
            assert "was added to a Linear" in told[name] and "parallelize again" in told[name]
        assert "the submodule 'head'" in told["a module"]
