"""Steps on local parts change the same bits as steps on ``DTensor``s."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor

import tensoropt_torch
from tensoropt_torch import TensorOptError
from tensoropt_torch.module.parallel_module import ParallelModule
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.steps.test_local_step"
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw, fused": (torch.optim.AdamW, {"fused": True}),
    "adamw, foreach": (torch.optim.AdamW, {"foreach": True}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "adamax": (torch.optim.Adamax, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True}),
    "asgd": (torch.optim.ASGD, {}),
}


class Scaled(nn.Module):
    """With a parameter of no dims, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layers(x) * self.scale).square().mean()


def parallel() -> tuple[ParallelModule, torch.Tensor]:
    """The plan with the least memory: parameters are split."""
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(8, 8)
    frontier = tensoropt_torch.find_frontier(model, (x,), num_devices=2)
    return tensoropt_torch.parallelize(model, frontier.smallest.plan), x


def make(name: str, module: nn.Module, local: bool) -> torch.optim.Optimizer:
    kind, options = OPTIMIZERS[name]
    first, *others = module.parameters()
    groups = [{"params": [first], "lr": 0.02}, {"params": others}]
    return (kind if local else on_wholes(kind))(groups, lr=0.01, **options)  # type: ignore[call-arg]


def on_wholes(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Of its own step it is not known what it does: it gets the ``DTensor``s."""

    class OnWholes(kind):  # type: ignore[valid-type, misc]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    return OnWholes


def train(module: ParallelModule, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(3):
        if step == 1:  # sums that wait, in another layout than the parameter's
            with module.no_sync():
                module(x).backward()
        else:
            module(x).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    optimizer.step(lambda: closure(module, x))


def closure(module: ParallelModule, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(x)
    torch.autograd.backward(loss)
    return loss


def parts_of(value: Any) -> Any:
    """What can be compared: the local tensors, in their places, and which were whole."""
    if isinstance(value, dict):
        return {key: parts_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [parts_of(item) for item in value]
    if isinstance(value, DTensor):
        return "DTensor", str(value.placements), value.to_local().tolist()
    return value.tolist() if isinstance(value, torch.Tensor) else value


def steps_of(name: str) -> tuple[Any, Any, Any, Any]:
    """Parameters and states: with steps on DTensors, with local ones, and after both went on
    from each other's states."""
    found, states = [], []
    for local in (False, True):
        module, x = parallel()
        optimizer = make(name, module, local)
        train(module, x, optimizer)
        states.append(copy.deepcopy(optimizer.state_dict()))
        found.append((parts_of(list(module.parameters())), parts_of(optimizer.state_dict())))
        assert all(isinstance(p, DTensor) for p in module.parameters())
    for local in (False, True):
        module, x = parallel()
        optimizer = make(name, module, local)
        optimizer.load_state_dict(states[not local])
        train(module, x, optimizer)
        found.append((parts_of(list(module.parameters())), parts_of(optimizer.state_dict())))
    return tuple(found)  # type: ignore[return-value]


def all_steps(_: None) -> dict[str, Any]:
    return {name: steps_of(name) for name in OPTIMIZERS}


def test_bits_and_states_are_those_of_steps_on_whole_parameters() -> None:
    for results in run_ranks(2, f"{HERE}:all_steps", None, 300):
        assert set(results) == set(OPTIMIZERS)
        for name, (plain, local, plain_on, local_on) in results.items():
            assert plain == local, name
            assert plain_on == local_on, name
            assert plain != plain_on, name


def rest(_: None) -> tuple[list[str], str, bool]:
    module, x = parallel()
    optimizer = tensoropt_torch.local_step(torch.optim.AdamW(module.parameters()))
    assert tensoropt_torch.local_step(optimizer) is optimizer
    module(x).backward()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(module(x)).backward()
    scaler.step(optimizer)
    scaler.update()
    state = get_optimizer_state_dict(module, optimizer)["state"]
    kinds = sorted({type(v["exp_avg"]).__name__ for n, v in state.items() if n != "unused"})
    with pytest.raises(TensorOptError) as refused:
        tensoropt_torch.local_step(torch.optim.Adafactor(module.parameters()))
    # A step that fails leaves nothing behind.
    parameters = list(module.parameters())
    module(x).backward()
    optimizer.param_groups[0]["betas"] = None
    with pytest.raises(TypeError):
        optimizer.step()
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    optimizer.step()
    same = all(a is b for a, b in zip(optimizer.param_groups[0]["params"], parameters, strict=True))
    return kinds, str(refused.value), same


def seen_by_hooks(_: None) -> list[str]:
    """What hooks of steps find as parameters and as their gradients, which were added before
    and after the first step."""
    module, x = parallel()
    optimizer = torch.optim.AdamW(module.parameters())
    seen: list[str] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            seen.append(type(p).__name__)
            seen.append(f"gradient {type(p.grad).__name__}")

    for _ in range(2):
        optimizer.register_step_pre_hook(look)
        optimizer.register_step_post_hook(look)
        module(x).backward()
        optimizer.step()
    states = [type(state["exp_avg"]).__name__ for state in optimizer.state.values()]
    return sorted({*seen, *(f"state {kind}" for kind in states)})


def test_hooks_of_steps_find_whole_parameters() -> None:
    for seen in run_ranks(2, f"{HERE}:seen_by_hooks", None, 120):
        expected = ["DTensor", "gradient DTensor", "gradient NoneType", "state Tensor"]
        assert seen == expected


def test_it_works_with_what_works_with_optimizers() -> None:
    for kinds, refused, same in run_ranks(2, f"{HERE}:rest", None, 120):
        assert kinds == ["DTensor"]
        assert "not known of Adafactor" in refused
        assert same
