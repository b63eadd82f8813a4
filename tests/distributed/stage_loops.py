"""Loops that users write around models in stages, beside those of one process."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_value_
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from tensoropt_torch import find_stages, parallelize
from tensoropt_torch.module.stage_step import StageStep
from tensoropt_torch.runtime.agreement import gather
from tests.distributed.models import Case
from tests.distributed.staged import differences, whole
from tests.stages.models import batch, make


class Several(nn.Module):
    """Returns a loss, what it is made of, a value of the middle and one of no row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.scale = nn.Parameter(torch.rand(8) + 0.5)
        self.late = nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.layers[1](self.layers[0](x).relu()).relu()
        logits = self.layers[3](self.layers[2](h).relu()) * self.scale
        loss = nn.functional.mse_loss(logits, y)
        return {"loss": loss, "logits": logits, "middle": h, "scale": self.late * 2}


def several(rows: int) -> Case:
    """Of a batch of so many rows."""
    torch.manual_seed(0)
    args = tuple(t.double() for t in batch(rows))
    return Case(Several().double(), args)


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


def half(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Under casts to float16 and ``GradScaler``, whose first scale is too large."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
    for number in range(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = module(*cases[number % BATCHES].args)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        yield f"norm {number}", nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        yield f"scale {number}", torch.tensor(scaler.get_scale())


def casting(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Under casts to bfloat16, two batches a step, the first of which under ``no_sync``."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    no_sync = getattr(module, "no_sync", contextlib.nullcontext)
    for first in range(0, BATCHES, 2):
        optimizer.zero_grad()
        for case, context in zip(cases[first:], (no_sync, contextlib.nullcontext), strict=False):
            with context():
                with torch.autocast("cpu", torch.bfloat16):
                    loss = module(*case.args)
                loss.backward()
        yield f"norm {first}", nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        yield f"loss {first}", loss


def own_losses(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Of what the module returns: one of all of it, one of its loss alone, both of two calls,
    and none of a call between."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for number, case in enumerate(cases):
        optimizer.zero_grad()
        first, second = module(*case.args), module(*cases[0].args)
        losses = [
            first["loss"] + first["logits"].square().mean() + first["scale"].sum(),
            first["loss"],
            first["logits"].sin().sum() + second["loss"],
            second["middle"].square().sum(),
        ]
        losses[number % len(losses)].backward()
        yield f"loss {number}", losses[number % len(losses)]
        yield f"norm {number}", nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
    del first, second, losses
    gc.collect()
    kept = [found for found in gc.get_objects() if isinstance(found, StageStep)]
    yield "steps that are kept, with or without their backward", torch.tensor(len(kept))


def few(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Steps in which only the first layers have gradients, of which the last stage has none."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for number, case in enumerate(cases):
        optimizer.zero_grad()
        module(*case.args)["middle"].square().sum().backward()
        yield f"norm {number}", nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()


def freezing(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Parameters are trained that were frozen first, and frozen that were trained: some, and all
    of the last layers, so of a stage."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    frozen: list[tuple[str, ...]] = [("down.0",), ("up", "head"), ("down.1",), ()]
    for number, (case, names) in enumerate(zip(cases, frozen, strict=True)):
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(not name.startswith(names) if names else True)
        optimizer.zero_grad()
        loss = module(*case.args)
        loss.backward()
        yield f"loss {number}", loss
        with torch.no_grad():
            yield f"evaluated {number}", module(*case.args)
        yield f"norm {number}", nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()


def clipped_values(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Gradients are clipped by value, with a function of PyTorch that was imported before; all of
    the last layers, so of a stage, are frozen, and then trained."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for number, case in enumerate(cases):
        for parameter in module.get_submodule("up").parameters():
            parameter.requires_grad_(number >= BATCHES // 2)
        for parameter in module.get_submodule("head").parameters():
            parameter.requires_grad_(number >= BATCHES // 2)
        optimizer.zero_grad()
        loss = module(*case.args)
        loss.backward()
        clip_grad_value_(module.parameters(), 1e-3)
        yield f"norm {number}", nn.utils.clip_grad_norm_(module.parameters(), 1e-2)
        optimizer.step()
        yield f"loss {number}", loss


def checkpointed(module: nn.Module, cases: list[Case]) -> Iterator[tuple[str, Any]]:
    """Inside of a checkpoint of PyTorch, from the first call on."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for number, case in enumerate(cases):
        optimizer.zero_grad()
        loss: Any = checkpoint(module, *case.args, use_reentrant=False)
        loss.backward()
        yield f"loss {number}", loss
        optimizer.step()


LOOPS: dict[str, Loop] = {
    "checkpointed": checkpointed,
    "freezing": freezing,
    "clipped values": clipped_values,
    "few": few,
    "casting": casting,
    "half": half,
    "own losses": own_losses,
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
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-8

    @property
    def casts(self) -> contextlib.AbstractContextManager[Any]:
        """Under which the model is called."""
        dtype = {"half": torch.float16, "casting": torch.bfloat16}.get(self.loop)
        return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)


def compare_loops(several: list[Trained]) -> list[str]:
    """What differs from one process."""
    return [f"{trained}: {text}" for trained in several for text in _compared(trained)]


def _compared(trained: Trained) -> Iterator[str]:
    case = several(8) if trained.model == "several" else make(trained.model, trained.dtype)
    cases = batches_of(case)
    if trained.loop == "freezing":
        case.model.get_submodule("down.0").requires_grad_(False)
    one = copy.deepcopy(case.model)
    with trained.casts:
        plan = find_stages(case.model, case.args, measure=False, outputs="all", **trained.options)
    parallel = parallelize(case.model, plan, case.args)
    found = [results(module, trained, cases) for module in (parallel, one)]
    yield from differences(gather(found[0]), found[1], trained.tolerance)


def batches_of(case: Case) -> list[Case]:
    """As many as loops run: that of the case, and others."""
    return [
        Case(
            case.model,
            tuple(t.roll(s, 0) * (1 + s if t.is_floating_point() else 1) for t in case.args),
        )
        for s in range(BATCHES)
    ]


def results(module: nn.Module, trained: Trained, cases: list[Case]) -> dict[str, torch.Tensor]:
    """What the loop yields, and then parameters and gradients."""
    found = {name: whole(value) for name, value in LOOPS[trained.loop](module, cases)}
    for name, parameter in module.named_parameters():
        found[f"parameter {name}"] = whole(parameter)
        if parameter.grad is not None:
            found[f"gradient {name}"] = whole(parameter.grad)
    return pytree.tree_map(lambda tensor: tensor.nan_to_num(7.0, 8.0, 9.0), found)
