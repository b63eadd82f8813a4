"""Runs that are kept under one plan and go on under another, with and without stages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import tensoropt_torch
from tensoropt_torch import Example, Plan, PlanningOptions
from tensoropt_torch.runtime.agreement import from_first_rank
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.tasks import captured_task
from tests.stages.models import make

MODELS = ("gpt_tied", "masked", "shares")
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
Kind = Literal["one file", "parts", "folder"]
KINDS: tuple[Kind, ...] = ("one file", "parts", "folder")
State = dict[str, dict[Any, Any]]


@dataclass(frozen=True)
class Run:
    """A model under a plan: in ``stages``, or without if there is one."""

    model: str
    world: int
    stages: int
    micro_batches: int
    seed: int


@dataclass(frozen=True)
class Pair:
    """A run that is kept, and one that goes on."""

    before: Run
    after: Run
    kind: Kind
    name: str


def drawn_pair(chosen: random.Random, number: int) -> Pair:
    """With other numbers of stages."""
    model = chosen.choice(MODELS)
    shapes = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)]
    runs = [
        Run(model, world, stages, chosen.choice([1, 2]), chosen.randrange(2**31))
        for world, stages in chosen.sample(shapes, 2)
    ]
    kind: Kind = chosen.choice(KINDS)
    return Pair(runs[0], runs[1], kind, f"run{number}")


def _made(run: Run, kind: str) -> tuple[nn.Module, torch.optim.Optimizer, tuple[torch.Tensor, ...]]:
    case = make(run.model)
    if run.stages > 1:
        plan: Any = tensoropt_torch.find_stages(
            case.model, case.args, measure=False, stages=run.stages, micro_batches=run.micro_batches
        )
    else:
        task = captured_task(Example(case.model, case.args), PlanningOptions())
        settings = task.settings(dist.get_world_size())
        space = make_space(task.captured, settings)
        plan = Plan.of(space, settings, task.captured, space.random_strategy(run.seed))
    parallel = tensoropt_torch.parallelize(case.model, plan, case.args)
    parameters = list(parallel.parameters())
    if kind == "parts":  # PyTorch reads no group that is empty, as in some stage one may be
        return parallel, torch.optim.AdamW(parameters, 0.01), case.args
    large, small = ([p for p in parameters if (p.dim() < 2) == few] for few in (False, True))
    groups = [{"params": large, "weight_decay": 0.1}, {"params": small, "weight_decay": 0.0}]
    return parallel, torch.optim.AdamW(groups, 0.01), case.args


def _step(parallel: nn.Module, optimizer: torch.optim.Optimizer, args: Any) -> float:
    optimizer.zero_grad()
    loss = parallel(*args)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _whole(parallel: Any, optimizer: torch.optim.Optimizer) -> State:
    weights = tensoropt_torch.full_state_dict(parallel)
    states = tensoropt_torch.full_optimizer_state_dict(optimizer)
    return {"model": weights, "optimizer": states}


def keep(given: tuple[Sequence[Pair], str]) -> dict[str, list[float]]:
    """Trains and keeps each of the runs; their losses afterwards, by name."""
    pairs, folder = given
    losses = {}
    for pair in pairs:
        parallel, optimizer, args = _made(pair.before, pair.kind)
        for _ in range(2):
            _step(parallel, optimizer, args)
        state = _whole(parallel, optimizer)
        path = Path(folder) / pair.name
        if dist.get_rank() == 0:
            torch.save(state, f"{path}.expected")
        if pair.kind == "one file":
            tensoropt_torch.save({**state, "model": parallel.state_dict()}, f"{path}.pt")
        elif pair.kind == "folder":
            checkpoints = tensoropt_torch.Checkpoints(path, parallel, optimizer)
            checkpoints.save(2)
            checkpoints.wait()
        else:
            weights, states = get_state_dict(parallel, optimizer, options=FLAT)
            dcp_save({"model": weights, "optimizer": states}, checkpoint_id=path)
        losses[pair.name] = [_step(parallel, optimizer, args) for _ in range(2)]
    return losses


def go_on(given: tuple[Sequence[Pair], str]) -> tuple[dict[str, list[float]], list[str]]:
    """Loads each of the runs; the losses then, and what differs from what was kept."""
    pairs, folder = given
    losses, texts = {}, []
    for pair in pairs:
        parallel, optimizer, args = _made(pair.after, pair.kind)
        path = Path(folder) / pair.name
        if pair.kind == "one file":
            saved = torch.load(f"{path}.pt")
            parallel.load_state_dict(saved["model"])
            tensoropt_torch.load_optimizer(optimizer, saved["optimizer"])
        elif pair.kind == "folder":
            tensoropt_torch.Checkpoints(path, parallel, optimizer).load()
        else:
            weights, states = get_state_dict(parallel, optimizer, options=FLAT)
            state = {"model": weights, "optimizer": states}
            dcp_load(state, checkpoint_id=path)
            set_state_dict(
                parallel,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
                options=FLAT,
            )
        found = _whole(parallel, optimizer)
        expected = torch.load(f"{path}.expected")
        if dist.get_rank() == 0:
            texts += [f"{pair}: {text}" for text in _differences(found, expected)]
        losses[pair.name] = [_step(parallel, optimizer, args) for _ in range(2)]
    return losses, from_first_rank(lambda: texts)


def _differences(found: Any, expected: Any, path: str = "") -> list[str]:
    """Bit for bit."""
    if isinstance(expected, torch.Tensor):
        same = isinstance(found, torch.Tensor) and torch.equal(found, expected)
        return [] if same else [path]
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            return [f"{path} has {sorted(map(str, found))}"]
        return [t for k in expected for t in _differences(found[k], expected[k], f"{path}.{k}")]
    if isinstance(expected, list):
        pairs = zip(found, expected, strict=True)
        return [t for i, (a, b) in enumerate(pairs) for t in _differences(a, b, f"{path}.{i}")]
    return [] if found == expected else [f"{path}: {found} instead of {expected}"]
