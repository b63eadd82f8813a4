"""Compiled steps that write to buffers are one node of autograd, and leave what the model leaves in
one process: losses, gradients, parameters and buffers, whatever is asked of a step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from tensoropt_torch import api
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.emit.test_changed_buffers"
TRACED = "aot_eager"
Kind = tuple[str, bool | str]  # of a model, and how it is compiled


class Normed(nn.Module):
    """Running statistics by momentum, and by the number of steps; a layer that is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.again, self.last_norm = nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=0.3)
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.up(x)).relu()
        h = self.last_norm(self.again(self.again(h)))
        return nn.functional.cross_entropy(self.down(h), y)


class Imaged(nn.Module):
    """Whose gradients of weights lie otherwise than the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.next, self.last = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Linear(24, 4)
        self.last_norm = nn.BatchNorm2d(4, affine=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x.view(-1, 1, 2, 3))).relu()
        h = self.last_norm(self.next(h)).relu()
        return nn.functional.cross_entropy(self.last(h.flatten(1)), y)


class Deep(nn.Module):
    """Whose evaluation takes fewer tensors than there are inputs before the last statistics."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [6, 8, 8, 8, 8]
        layers = [(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(sizes)]
        self.layers = nn.Sequential(*(one for layer in layers for one in layer))
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.down(self.layers(x)), y)


class Averaged(nn.Module):
    """Keeps an average that it subtracts, and counts."""

    count: torch.Tensor
    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 4)
        self.register_buffer("average", torch.zeros(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        centred = h - self.average
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
                self.count.add_(1)
        return nn.functional.cross_entropy(self.down(centred.relu()), y)


class Partly(Averaged):
    """Has parameters and a buffer that it does not use, before those that it uses."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_buffer("unused", torch.zeros(3))
        self.first = nn.Linear(3, 3)
        super().__init__()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "normed": Normed,
    "imaged": Imaged,
    "deep": Deep,
    "averaged": Averaged,
    "partly": Partly,
}
KINDS: list[Kind] = [
    *((name, TRACED) for name in ("normed", "imaged", "deep", "averaged")),
    ("normed", True),
    ("imaged", True),
]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 6), torch.randint(4, (16,))


def both(kind: Kind) -> Iterator[nn.Module]:
    """The model as it is, and compiled, of which steps are one node from the second one on."""
    name, compile = kind
    torch.manual_seed(0)
    model = MODELS[name]()
    task = PlanningTask(capture(model, batch()), load_cluster("cpu"))
    (baseline,) = find_baselines(task, torch.distributed.get_world_size(), ("data parallel",))
    yield copy.deepcopy(model)
    module = api.parallelize(copy.deepcopy(model), baseline.plan(0), compile=compile)
    warm = copy.deepcopy(module.state_dict())
    for trains in (False, True):  # such inputs have a graph of their own
        x, y = batch()
        torch.autograd.backward(module(x.requires_grad_(trains), y))
    module.zero_grad()
    module.load_state_dict(warm)
    yield module
    check_one_node(module)


def check_one_node(module: ParallelModule) -> None:
    base = programs_of(module).base
    assert base.is_compiled_whole
    assert base.whole is not None and base.whole.is_at_once


def whole(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None:
        return None
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def left_by(module: nn.Module, what: str) -> dict[str, Any]:
    """Gradients, parameters and buffers, by what was done."""
    named = [*module.named_parameters(), *module.named_buffers()]
    found = {f"{what}: {name}": whole(tensor) for name, tensor in named}
    grads = ((name, p.grad) for name, p in module.named_parameters())
    return found | {f"{what}: gradient of {name}": whole(grad) for name, grad in grads}


def asked(module: nn.Module) -> dict[str, Any]:
    """What is left by everything that is done to a module."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    found: dict[str, Any] = {}

    def note(what: str, loss: torch.Tensor | None = None) -> None:
        found.update(left_by(module, what))
        if loss is not None:
            found[f"{what}: loss"] = loss.detach()
        module.zero_grad()

    for step in range(3):
        loss = module(*batch())
        loss.backward()
        optimizer.step()
        note(f"step {step}", loss)
    with torch.no_grad():
        note("without gradients", module(*batch()))
    module.eval()
    loss = module(*batch())
    loss.backward()
    note("evaluated", loss)
    module.train()
    first, second = module(*batch()), module(*batch())
    second.backward()
    first.backward()
    note("two forwards")
    (module(*batch()) * 2 + module(*batch())).backward()
    note("two in one backward")
    for reentrant in (False, True):
        x, y = batch()
        loss = checkpoint(module, x.requires_grad_(), y, use_reentrant=reentrant)
        loss.backward()
        note(f"checkpointed, {reentrant}", loss)
    first_parameter = next(module.parameters())
    module(*batch()).backward(inputs=[first_parameter])
    note("inputs")
    found["asked for"] = whole(torch.autograd.grad(module(*batch()), [first_parameter])[0])
    handle = first_parameter.register_hook(lambda gradient: gradient * 2)
    module(*batch()).backward()
    handle.remove()
    note("hooked")
    first_parameter.requires_grad_(False)
    for step in range(2):
        module(*batch()).backward()
        note(f"frozen {step}")
    first_parameter.requires_grad_(True)
    module(*batch()).backward()
    module(*batch()).backward()  # is added
    note("trained again")
    return found


# The gradients of a layer that is used twice are added up in each forward first.
ADDED = "two in one backward: gradient of again."


def differences(kind: Kind) -> list[str]:
    """Between the model as it is and compiled, of what ``asked`` leaves."""
    expected, got = map(asked, both(kind))
    # One rank computes the same by the same kernels, unless they are fused.
    is_same = torch.distributed.get_world_size() == 1 and kind[1] == TRACED
    near: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}
    same: dict[str, float] = {"rtol": 0, "atol": 0}
    wrong = [*{*expected} ^ {*got}]
    for name in {*expected} & {*got}:
        ours, theirs = got[name], expected[name]
        allowed = same if is_same and not name.startswith(ADDED) else near
        alike = ours is theirs is None or (
            ours is not None and theirs is not None and torch.allclose(ours, theirs, **allowed)
        )
        wrong += [] if alike else [name]
    return sorted(wrong)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]} {kind[1]}")
def test_one_process_leaves_what_the_model_leaves(kind: Kind) -> None:
    assert run_ranks(1, f"{HERE}:differences", kind, 400) == [[]]


@pytest.mark.parametrize(
    "kind", [("averaged", TRACED), ("averaged", True)], ids=lambda kind: f"{kind[0]} {kind[1]}"
)
def test_two_processes_leave_what_the_model_leaves(kind: Kind) -> None:
    assert run_ranks(2, f"{HERE}:differences", kind, 400) == [[]] * 2


def raised_by(call: Callable[[], Any]) -> str:
    """Of the errors of autograd, the words that tell what is wrong."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def refused(kind: Kind) -> list[str]:
    """What is not refused as it should be, or is and should not."""
    wrong = []
    (_, module) = both(kind)
    buffer = next(iter(module.buffers()))
    loss = module(*batch())
    loss.backward()
    if "second time" not in raised_by(loss.backward):
        wrong.append("backward runs a second time")
    loss = module(*batch())
    with torch.no_grad():
        [*module.parameters()][-2].mul_(1.5)  # whose values backward needs
    if "modified by an inplace" not in raised_by(loss.backward):
        wrong.append("a parameter that was changed is taken as it is")
    loss = module(*batch())
    reason = raised_by(lambda: torch.autograd.backward(loss, create_graph=True))
    if "double backward" not in reason:
        wrong.append(f"second derivatives: {reason}")
    before = buffer._version
    module(*batch())
    if buffer._version == before:
        wrong.append("autograd does not see that a buffer is written to")
    with torch._functorch.config.patch(donated_buffer=False):
        plain, module = both(kind)
        gradients = []
        for own in (plain, module):
            torch.manual_seed(3)
            loss = own(*batch())
            loss.backward(retain_graph=True)
            loss.backward()
            gradients.append(left_by(own, "kept"))
    expected, got = gradients
    wrong += [n for n, value in expected.items() if not torch.allclose(value, got[n], atol=1e-5)]
    return wrong


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]} {kind[1]}")
def test_what_is_refused_elsewhere_is_refused(kind: Kind) -> None:
    assert run_ranks(1, f"{HERE}:refused", kind, 400) == [[]]


def lying_otherwise(kind: Kind) -> list[str]:
    """What differs where buffers are views of other memory, with gaps, and one has that of an
    input."""
    found = []
    for module in both(kind):
        torch.manual_seed(2)
        memory = torch.zeros(16 * 6)
        module.average = memory[:16:2]
        for _ in range(2):
            module(*batch()).backward()
        with torch.no_grad():
            loss = module(memory.view(16, 6), batch()[1])
        found.append(left_by(module, "left") | {"loss": loss, "memory": memory})
    expected, got = found
    return [
        n for n, value in expected.items() if value is not None and not torch.equal(value, got[n])
    ]


@pytest.mark.parametrize("name", ["averaged", "partly"])
def test_buffers_may_lie_otherwise(name: str) -> None:
    assert run_ranks(1, f"{HERE}:lying_otherwise", (name, TRACED), 400) == [[]]
