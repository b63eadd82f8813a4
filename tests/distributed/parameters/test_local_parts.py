"""Gradients of local parts arrive as those of plain parameters do, and lie in memory as their
parameters, as fused optimizers need it."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

from tensoropt_torch.parameters.local_parts import local_parts, local_tensor, own_gradient
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.parameters.test_local_parts"
LOSSES = {
    "transposed": lambda x: (x.t().contiguous() * torch.arange(6.0).view(3, 2)).sum(),
    "expanded": lambda x: x.sum(),
    "rows": lambda x: (x.sum(0) * torch.arange(3.0)).sum(),
}


def step(parameter: nn.Parameter, kind: str, fused: bool) -> torch.Tensor:
    optimizer = torch.optim.AdamW([parameter], lr=0.1, eps=1.0, fused=fused)
    for _ in range(2):
        LOSSES[kind](local_parts([parameter], [None])[0]).backward()
    assert parameter.grad is not None
    with torch.no_grad():
        gradient, part = local_parts([parameter.grad, parameter], [None, None])
        assert gradient.stride() == part.stride(), kind
        optimizer.step()
        return part.clone()


def steps(_: None) -> dict[str, float]:
    mesh = init_device_mesh("cpu", (1,))
    errors = {}
    for kind in LOSSES:
        for fused in (False, True):
            distributed = DTensor.from_local(torch.ones(2, 3), mesh, [Replicate()])
            ours = step(nn.Parameter(distributed), kind, fused)
            theirs = step(nn.Parameter(torch.ones(2, 3)), kind, fused)
            errors[f"{kind}, fused={fused}"] = float((ours - theirs).abs().max())
    return errors


def test_steps_are_those_of_plain_parameters() -> None:
    for name, error in run_ranks(1, f"{HERE}:steps")[0].items():
        assert error == pytest.approx(0, abs=1e-6), name


Record = dict[str, object]
Parameters = list[nn.Parameter]


def numbers(tensor: torch.Tensor | None) -> object:
    if tensor is None:
        return None
    return local_tensor(tensor).detach().clone().tolist()


def loss_of(parameters: Parameters) -> torch.Tensor:
    """The second and the third have one gradient between them, the last has none."""
    first, second, third, _ = local_parts(parameters, [None, None, None, [3, 2]])
    both = second + third  # whose gradient lies in memory as theirs do
    return (first * second.detach()).sum() + 3 * (both * (1 + third.detach())).sum()


def once(parameters: Parameters) -> Record:
    loss_of(parameters).backward()
    torch._foreach_mul_([local_tensor(p.grad) for p in parameters if p.grad is not None], 2.0)
    return {}


def added(parameters: Parameters) -> Record:
    for _ in range(2):
        loss_of(parameters).backward()
    (loss_of(parameters) + loss_of(parameters)).backward()
    return {}


def of_two_forwards(parameters: Parameters) -> Record:
    (loss_of(parameters) + loss_of(parameters)).backward()
    return {}


def kept_graph(parameters: Parameters) -> Record:
    loss = loss_of(parameters)
    loss.backward(retain_graph=True)
    before = parameters[0].grad
    parameters[0].grad = None
    loss.backward()
    return {"before": numbers(before)}


def hooked(parameters: Parameters) -> Record:
    seen: list[object] = []
    for p in parameters:
        p.register_hook(lambda gradient: 2 * gradient)
        p.register_post_accumulate_grad_hook(lambda p: seen.append(numbers(p.grad)))
    loss_of(parameters).backward()
    return {"seen": sorted(map(str, seen))}


def hooked_after_forward(parameters: Parameters) -> Record:
    loss, seen = loss_of(parameters), list[object]()
    parameters[0].register_hook(lambda gradient: 2 * gradient)
    parameters[1].register_post_accumulate_grad_hook(lambda p: seen.append(numbers(p.grad)))
    loss.backward()
    return {"seen": seen}


def not_accumulated(parameters: Parameters) -> Record:
    found = torch.autograd.grad(loss_of(parameters), parameters[:2])
    loss_of(parameters).backward(inputs=[parameters[2]])
    return {"found": [numbers(gradient) for gradient in found]}


def frozen(parameters: Parameters) -> Record:
    parameters[1].requires_grad_(False)
    loss_of(parameters).backward()
    return {}


WAYS = {
    way.__name__: way
    for way in (
        once,
        added,
        of_two_forwards,
        kept_graph,
        hooked,
        hooked_after_forward,
        not_accumulated,
        frozen,
    )
}


def gradients(_: None) -> dict[str, tuple[Record, Record]]:
    mesh = init_device_mesh("cpu", (1,))
    values = [torch.arange(6.0).view(2, 3) + i for i in range(4)]
    found = {}
    for name, way in WAYS.items():
        plain = [nn.Parameter(value.clone()) for value in values]
        ours = [
            nn.Parameter(DTensor.from_local(value.clone(), mesh, [Replicate()])) for value in values
        ]
        records = []
        for parameters in (ours, plain):
            record = way(parameters)
            records.append(record | {"grads": [numbers(p.grad) for p in parameters]})
        found[name] = (records[0], records[1])
    return found


def test_gradients_are_those_of_plain_parameters() -> None:
    found = run_ranks(1, f"{HERE}:gradients")[0]
    assert list(found) == list(WAYS)
    for name, (ours, plain) in found.items():
        assert ours == plain, name


@pytest.mark.parametrize("seed", range(3))
def test_memory_is_claimed_once(seed: int) -> None:
    """Of one storage, by whoever comes first: an oracle of all its elements."""
    generator = random.Random(seed)
    storage = torch.zeros(40)
    taken = [False] * 40
    for _ in range(60):
        start = generator.randrange(40)
        stop = generator.randrange(start, min(start + 6, 40) + 1)
        free = not any(taken[start:stop])
        part = storage[start:stop]
        own = own_gradient(part, part.stride())
        assert (own is part) == free, (seed, start, stop)
        if free:
            taken[start:stop] = [True] * (stop - start)
