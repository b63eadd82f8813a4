"""A parallel module is used as the model is: containers, state dicts, optimizers; and what one rank
does alone is noticed."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import tensoropt_torch
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.parallel_module import ParallelModule
from tests.distributed.harness import run_ranks
from tests.distributed.parity import whole

HERE = "tests.distributed.module.test_wrapper"


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x

    def __getitem__(self, index: int) -> nn.Module:
        return self.layers[index]


def sequence(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Linear(12, 32), nn.Tanh(), nn.BatchNorm1d(32), nn.Linear(32, 12)
    return nn.Sequential(*layers).double()


def batch(index: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randn(8, 12, generator=generator, dtype=torch.float64)


def parallel(model: nn.Module) -> ParallelModule:
    plan = tensoropt_torch.find_frontier(model, (batch(),)).smallest.plan
    return tensoropt_torch.parallelize(model, plan)


def split(module: nn.Module) -> bool:
    return any(p.to_local().numel() < p.numel() for p in module.parameters())  # type: ignore[attr-defined]


def containers(_: None) -> None:
    one, module = sequence(), parallel(sequence())
    assert isinstance(module, ParallelModule) and split(module)
    assert len(module) == len(one) == 4 and bool(module)  # type: ignore[arg-type]
    assert module[0].weight is next(module.parameters())  # type: ignore[index]
    assert [type(m).__name__ for m in module] == [type(m).__name__ for m in one]  # type: ignore[attr-defined]
    assert module[-1] in list(reversed(list(module)))  # type: ignore[call-overload, index]
    part = module[1:]  # type: ignore[index]
    assert [type(m).__name__ for m in part] == [type(m).__name__ for m in one[1:]]
    assert [n for n, _ in part.named_parameters()] == [n for n, _ in one[1:].named_parameters()]
    with pytest.raises(TensorOptError, match="submodule"):
        part(batch())
    with pytest.raises(TensorOptError, match="was replaced"):
        module[0] = nn.Linear(12, 32)  # type: ignore[index]
    layers = parallel(Layers().double())
    assert len(layers.layers[1:]) == 2 and layers[0] is layers.layers[0]  # type: ignore[index]
    with pytest.raises(TypeError):
        len(layers)  # type: ignore[arg-type]
    with pytest.raises(TensorOptError, match="was added"):
        layers.layers.append(nn.Linear(2, 2))


def test_containers_are_those_of_the_model() -> None:
    run_ranks(2, f"{HERE}:containers", None, 120)


def refusals(_: None) -> list[str]:
    """What must not pass without a word; names of what did."""
    module = parallel(sequence())
    optimizer = torch.optim.Adam(module.parameters())
    module(batch()).square().sum().backward()
    optimizer.step()
    ways: dict[str, tuple[Callable[[], object], str]] = {
        "save": (lambda: torch.save(module.state_dict(), io.BytesIO()), "full_state_dict"),
        "save of the optimizer": (
            lambda: torch.save(optimizer.state_dict(), io.BytesIO()),
            "tensoropt_torch.save",
        ),
        "pickle": (lambda: pickle.dumps(module[0].weight), "full_tensor"),  # type: ignore[index]
        "half of a part": (lambda: module[0].half(), "cannot become torch.float16"),  # type: ignore[index]
        "plan again": (
            lambda: tensoropt_torch.find_frontier(module, (batch(),)),
            "is a parallel module already",
        ),
        "plan around": (
            lambda: tensoropt_torch.find_frontier(nn.Sequential(module), (batch(),)),
            "'0' of it is a parallel module already",
        ),
        "other values": (
            lambda: module.load_state_dict(sequence(dist.get_rank()).state_dict()),
            "has other values in this state dict",
        ),
    }
    passed = []
    before = {name: whole(p).clone() for name, p in module.named_parameters()}
    for name, (way, words) in ways.items():
        try:
            way()
            passed.append(name)
        except TensorOptError as error:
            if words not in str(error):
                passed.append(f"{name}: {error}")
    passed += [n for n, p in module.named_parameters() if not torch.equal(whole(p), before[n])]
    module(batch()).sum().backward()  # it goes on
    return passed


def test_what_would_be_wrong_is_refused() -> None:
    for passed in run_ranks(2, f"{HERE}:refusals", None, 120):
        assert passed == []


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for index in steps:
        model(batch(index)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


KINDS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.01),
}


def whole_states(_: None) -> list[str]:
    """Optimizers that were given the state dict of one process, at once or between steps."""
    wrong = []
    for name, make in KINDS.items():
        for first in (0, 2):
            one, module = sequence(), parallel(sequence(1))
            theirs, own = make(one), make(module)
            train(module, own, range(first))
            train(one, theirs, range(3))
            module.load_state_dict(one.state_dict())
            own.load_state_dict(copy.deepcopy(theirs.state_dict()))
            for model, optimizer in ((one, theirs), (module, own)):
                train(model, optimizer, range(3, 6))
            for (key, p), q in zip(module.named_parameters(), one.parameters(), strict=True):
                if not torch.allclose(whole(p), q, rtol=1e-9, atol=1e-12):
                    wrong.append(f"{name}, after {first} steps: {key}")
    return wrong


def test_optimizers_take_states_of_one_process() -> None:
    for wrong in run_ranks(2, f"{HERE}:whole_states", None, 120):
        assert wrong == []


def leaves_out_a_step(_: None) -> str:
    """The error of the next call."""
    module = parallel(sequence())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    train(module, optimizer, range(2))
    module(batch()).sum().backward()
    if dist.get_rank() == 0:
        optimizer.step()
    with pytest.raises(TensorOptError) as error:
        module(batch())
    return str(error.value)


def test_a_step_that_one_rank_leaves_out_is_noticed() -> None:
    for said in run_ranks(2, f"{HERE}:leaves_out_a_step", None, 120):
        assert "after 3 steps of optimizers" in said and "after 2 steps of optimizers" in said


def freezes_alone(_: None) -> str:
    module = parallel(sequence())
    if dist.get_rank() == 1:
        module[0].requires_grad_(False)  # type: ignore[index]
    with pytest.raises(TensorOptError) as error:
        module(batch())
    return str(error.value)


def test_parameters_that_one_rank_freezes_are_named() -> None:
    for said in run_ranks(2, f"{HERE}:freezes_alone", None, 120):
        assert "2 of 6 parameters frozen" in said


def averages(_: None) -> list[str]:
    """The recipe of docs/training-loops.md beside ``AveragedModel`` in one process."""
    one, model = sequence(), sequence()
    module = parallel(model)
    theirs = AveragedModel(one, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    theirs.update_parameters(one)  # the first one copies
    own = tensoropt_torch.parallelize(copy.deepcopy(model), module.plan)
    assert isinstance(own, ParallelModule)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (one, module)]
    for index in range(4):
        train(one, optimizers[0], range(index, index + 1))
        theirs.update_parameters(one)
        train(module, optimizers[1], range(index, index + 1))
        with torch.no_grad():
            for mean, p in zip(own.parameters(), module.parameters(), strict=True):
                mean.lerp_(p, 1 - 0.9)
            for mean, buffer in zip(own.buffers(), module.buffers(), strict=True):
                mean.copy_(buffer)
    theirs.module.load_state_dict(dict(one.named_buffers()), strict=False)
    with torch.no_grad():
        found, expected = own.eval()(batch()), theirs.eval()(batch())
    wrong = [] if torch.allclose(found, expected, rtol=1e-9) else ["outputs"]
    pairs = zip(own.named_parameters(), theirs.module.parameters(), strict=True)
    return wrong + [n for (n, p), q in pairs if not torch.allclose(whole(p), q, rtol=1e-9)]


def test_averages_are_those_of_one_process() -> None:
    for wrong in run_ranks(2, f"{HERE}:averages", None, 120):
        assert wrong == []
