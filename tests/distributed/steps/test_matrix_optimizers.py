"""Optimizers that need whole matrices, and states of parameters that had no gradient yet."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

import tensoropt_torch
from tensoropt_torch import TensorOptError
from tests.distributed.harness import run_ranks
from tests.distributed.kinds import Kind
from tests.distributed.parity import whole

HERE = "tests.distributed.steps.test_matrix_optimizers"
Make = Callable[[Any], torch.optim.Optimizer]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv = nn.Linear(16, 48), nn.Conv1d(4, 4, 3, padding=1)
        self.last, self.later = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, use_later: bool = False) -> torch.Tensor:
        q, k, v = self.first(x).chunk(3, -1)
        h = self.conv(torch.nn.functional.silu(q) * k + v).tanh()
        out = self.last(h) + self.later(h) if use_later else self.last(h)
        return out.square().mean()


def batches(count: int) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 4, 16, generator=generator),) for _ in range(count)]


MAKE: dict[str, Make] = {
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2, weight_decay=0.1),
    "adafactor_foreach": lambda p: torch.optim.Adafactor(p, lr=1e-2, foreach=True),
    "adafactor_maximize": lambda p: torch.optim.Adafactor(p, lr=1e-3, maximize=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-2),
    "rprop_foreach": lambda p: torch.optim.Rprop(p, lr=1e-2, foreach=True),
}


def adafactor() -> Kind:
    return Kind(Net, batches(4), optimizer=MAKE["adafactor"], tolerance=1e-9)


def adafactor_foreach() -> Kind:
    return Kind(Net, batches(4), optimizer=MAKE["adafactor_foreach"], tolerance=1e-9)


def adafactor_maximize() -> Kind:
    return Kind(Net, batches(3), optimizer=MAKE["adafactor_maximize"], tolerance=1e-9)


def rprop() -> Kind:
    return Kind(Net, batches(4), optimizer=MAKE["rprop"], tolerance=1e-9)


def rprop_foreach() -> Kind:
    return Kind(Net, batches(4), optimizer=MAKE["rprop_foreach"], tolerance=1e-9)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("name", MAKE)
def test_steps_are_those_of_one_process(name: str, world_size: int) -> None:
    found = run_ranks(world_size, "tests.distributed.kinds:check", f"{HERE}:{name}", 240)
    assert found == [[]] * world_size


def with_closure(_: None) -> float:
    """A closure, and a step that fails, leave the groups as they were."""
    model = made()
    one = copy.deepcopy(model)
    module = tensoropt_torch.parallelize(model, plans()[0])
    x = batches(1)[0][0].double()
    for network in (one, module):
        optimizer = MAKE["adafactor"](network.parameters())

        def closure(network: nn.Module = network) -> torch.Tensor:
            network.zero_grad()
            loss: torch.Tensor = network(x)
            torch.autograd.backward(loss)
            return loss

        for _ in range(2):
            optimizer.step(closure)
        optimizer.param_groups[0]["eps"] = (None,)
        with pytest.raises((ValueError, IndexError)):
            optimizer.step(closure)
        optimizer.param_groups[0]["eps"] = (None, 1e-3)
        optimizer.step(closure)
        assert len(optimizer.param_groups[0]["params"]) == 8
    theirs = dict(one.named_parameters())
    return max(float((whole(p) - theirs[n]).abs().max()) for n, p in module.named_parameters())


def test_closures_and_steps_that_fail() -> None:
    for error in run_ranks(2, f"{HERE}:with_closure"):
        assert error < 1e-12


# States


def made() -> Net:
    torch.manual_seed(0)
    return Net().double()


def plans() -> list[Any]:
    """Of the smallest and of the fastest, for calls that use all."""
    frontier = tensoropt_torch.find_frontier(made(), (batches(1)[0][0].double(), True))
    return [frontier.smallest.plan, frontier.fastest.plan]


OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "adafactor": MAKE["adafactor"],
    "rprop": MAKE["rprop"],
}
SAVED, STEPS = 2, 5
ROUNDING = 1e-9  # PyTorch's NAdam keeps numbers in float32, which loading makes float64: 7e-11


def train(module: nn.Module, optimizer: torch.optim.Optimizer, begin: int, end: int) -> None:
    """A part is used after the state was saved only."""
    for step, (x,) in list(enumerate(batches(end)))[begin:]:
        optimizer.zero_grad()
        module(x.double(), step >= SAVED).backward()
        optimizer.step()


def by_dcp(folder: Path, first: Any, second: Any) -> None:
    dcp.save(dict(zip("mo", get_state_dict(*first), strict=True)), checkpoint_id=folder)
    saved = dict(zip("mo", get_state_dict(*second), strict=True))
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(*second, model_state_dict=saved["m"], optim_state_dict=saved["o"])


def by_file(folder: Path, first: Any, second: Any) -> None:
    path = folder.with_suffix(".pt")
    tensoropt_torch.save([part.state_dict() for part in first], path)
    weights, states = torch.load(path, weights_only=False)
    second[0].load_state_dict(weights)
    tensoropt_torch.load_optimizer(second[1], states)


def from_first_rank(_: Path, first: Any, second: Any) -> None:
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, states = get_state_dict(*first, options=options)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(second[0], weights, options=options)
    set_optimizer_state_dict(*second, states, options=options)


WAYS = {"dcp": by_dcp, "one file": by_file, "rank 0": from_first_rank}


def resume(folder: Path) -> list[str]:
    wrong = []
    smallest, fastest = plans()
    for name, make in OPTIMIZERS.items():
        one = made()
        train(one, make(one.parameters()), 0, STEPS)
        expected = dict(one.named_parameters())
        for way, go in WAYS.items():
            pairs = []
            for plan in (smallest, fastest):
                module = tensoropt_torch.parallelize(made(), plan)
                pairs.append((module, make(module.parameters())))
            train(*pairs[0], 0, SAVED)
            count = len(pairs[0][1].state)
            go(folder / f"{name} {way}", *pairs)
            if len(pairs[0][1].state) != count:
                wrong.append(f"{name}, {way}: saving left states behind")
            train(*pairs[1], SAVED, STEPS)
            for parameter, value in pairs[1][0].named_parameters():
                if not torch.allclose(whole(value), expected[parameter], rtol=0, atol=ROUNDING):
                    wrong.append(f"{name}, {way}: {parameter}")
    return wrong


def test_runs_go_on_in_which_a_part_was_not_used_yet(tmp_path: Path) -> None:
    for wrong in run_ranks(2, f"{HERE}:resume", tmp_path, 300):
        assert wrong == []


def freeze_first(folder: Path) -> tuple[str, float]:
    """States that PyTorch does not load, and the way out."""
    plan, make, found = plans()[0], OPTIMIZERS["adamw"], []
    first = tensoropt_torch.parallelize(made(), plan)
    optimizer = make(first.parameters())
    train(first, optimizer, 0, SAVED)
    for frozen in (True, False):
        second = tensoropt_torch.parallelize(made(), plan)
        pair = second, make(second.parameters())
        second.first.weight.requires_grad_(not frozen)
        by_dcp(folder / str(frozen), (first, optimizer), pair)
        second.first.weight.requires_grad_(True)
        if frozen:
            with pytest.raises(TensorOptError) as error:
                train(*pair, SAVED, STEPS)
            found.append(str(error.value))
        else:
            train(*pair, SAVED, STEPS)
    one = made()
    train(one, make(one.parameters()), 0, STEPS)
    theirs = dict(one.named_parameters())
    errors = [float((whole(p) - theirs[n]).abs().max()) for n, p in second.named_parameters()]
    dist.barrier()
    return found[0], max(errors)


def test_states_that_were_left_out_are_missed(tmp_path: Path) -> None:
    for text, error in run_ranks(2, f"{HERE}:freeze_first", tmp_path):
        assert "'first.weight' was frozen when states" in text and "load_optimizer" in text
        assert error < 1e-11
