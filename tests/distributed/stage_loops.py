"""Loops that users write around models in stages, beside those of one process."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch import find_stages, parallelize
from tensoropt_torch.runtime.agreement import gather
from tests.distributed.models import Case
from tests.distributed.staged import differences, whole
from tests.stages.models import make

Loop = Callable[[nn.Module, list[Case]], Iterator[tuple[str, Any]]]
BATCHES = 4


def accumulating(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Two batches a step, under ``no_sync`` but for the last, clipped by PyTorch, under a
    schedule of learning rates."""
    optimizer = torch.optim.AdamW(module.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    no_sync = getattr(module, "no_sync", contextlib.nullcontext)
    for first in range(0, BATCHES, 2):
        optimizer.zero_grad()
        with no_sync():
            loss = module(*cases[first].args) / 2
            loss.backward()
        yield f"loss {first}", loss
        (module(*cases[first + 1].args) / 2).backward()
        yield f"norm {first}", nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
        scheduler.step()


def never_synchronised(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Steps of optimizers, and norms, after passes under ``no_sync`` alone."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    no_sync = getattr(module, "no_sync", contextlib.nullcontext)
    for number, case in enumerate(cases):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        with no_sync():
            module(*case.args).backward()
            module(*case.args).backward()
        if number % 2:
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            yield f"norm {number}", nn.utils.get_total_norm(gradients, float("inf"))
        optimizer.step()


def scaled(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Under ``GradScaler``, where one gradient of the last stage is infinite in one step."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    for number, case in enumerate(cases):
        optimizer.zero_grad()
        loss = module(*case.args)
        scaler.scale(loss).backward()
        last = dict(module.named_parameters()).get("head.bias")
        if number == 1 and last is not None:
            assert last.grad is not None
            local = last.grad.to_local() if hasattr(last.grad, "to_local") else last.grad
            local.fill_(float("inf"))
        scaler.unscale_(optimizer)
        yield f"norm {number}", nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        yield f"scale {number}", torch.tensor(scaler.get_scale())


LOOPS: dict[str, Loop] = {
    "accumulating": accumulating,
    "never synchronised": never_synchronised,
    "scaled": scaled,
}


@dataclass(frozen=True)
class Trained:
    """What is trained, by which loop."""

    loop: str
    model: str
    options: dict[str, Any]


def compare_loops(several: list[Trained]) -> list[str]:
    """What differs from one process."""
    return [f"{trained}: {text}" for trained in several for text in _compared(trained)]


def _compared(trained: Trained) -> Iterator[str]:
    case = make(trained.model)
    shift = torch.arange(BATCHES)
    cases = [
        Case(case.model, tuple(t.roll(int(s), 0) * (1 + (t.is_floating_point() and s)) for t in a))
        for s in shift
        for a in (case.args,)
    ]
    one = copy.deepcopy(case.model)
    plan = find_stages(case.model, case.args, **trained.options)
    parallel = parallelize(case.model, plan, case.args)
    found = [_results(module, trained, cases) for module in (parallel, one)]
    yield from differences(gather(found[0]), found[1], 1e-8)


def _results(module: nn.Module, trained: Trained, cases: list[Case]) -> dict[str, torch.Tensor]:
    found = {name: whole(value) for name, value in LOOPS[trained.loop](module, cases)}
    for name, parameter in module.named_parameters():
        found[f"parameter {name}"] = whole(parameter)
        if parameter.grad is not None:
            found[f"gradient {name}"] = whole(parameter.grad)
    return pytree.tree_map(lambda tensor: tensor.nan_to_num(7.0, 8.0, 9.0), found)
