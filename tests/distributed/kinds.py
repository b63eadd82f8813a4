"""A module against one process: under both ends of the frontier and two random strategies.

::

    def hooked() -> Kind:
        return Kind(Net, batches=[(x, y)], before=add_hooks)

    def test_hooks(world):      # in a test
        assert run_ranks(world, "tests.distributed.kinds:check", "tests....:hooked") == [[]] * world

What a kind does to a module in ``before`` is done before it becomes parallel, what it does in
``after`` to the parallel module; to the module of one process both are done.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import parallelize
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.parity import TOLERANCE, whole

SEEDS = (3, 8)  # of random strategies


def _nothing(module: nn.Module) -> None:
    pass


def _call(module: nn.Module, *batch: Any, **keywords: Any) -> torch.Tensor:
    loss: torch.Tensor = module(*batch, **keywords)
    return loss


@dataclass
class Kind:
    """What is compared.

    Attributes:
        make: the module; called after the same ``torch.manual_seed`` each time.
        batches: of the steps, each the arguments of a call.
        keywords: of every call.
        before, after: what is done to the module, see above.
        between: what the training loop does to the module before each step, by its number.
        step: the loss of a step.
        optimizer: of parameters.
        inputs: as for a plan.
        options: keywords of ``parallelize``.
        recompute: whether plans may run operators again in backward.
    """

    make: Callable[[], nn.Module]
    batches: Sequence[tuple[Any, ...]]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[nn.Module], None] = _nothing
    after: Callable[[nn.Module], None] = _nothing
    between: Callable[[nn.Module, int], None] | None = None
    step: Callable[..., torch.Tensor] = _call
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.1)
    inputs: str = "replicated"
    options: Mapping[str, Any] = field(default_factory=dict)
    recompute: bool = False
    tolerance: float = TOLERANCE[torch.float64]


@dataclass
class _Run:
    losses: list[float]
    tensors: dict[str, torch.Tensor]  # gradients of the last step, parameters, buffers


def check(name: str) -> list[str]:
    """On every rank: what is wrong with the kind ``module:function`` makes."""
    module, _, function = name.partition(":")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        kind: Kind = getattr(importlib.import_module(module), function)()
        return [text for label, plan in strategies(kind) for text in compare(kind, label, plan)]
    finally:
        torch.set_default_dtype(before)


def strategies(kind: Kind) -> Iterator[tuple[str, Plan]]:
    """Both ends of the frontier, and random ones."""
    model = _made(kind)
    captured = capture(model, kind.batches[0], kind.keywords)
    task = PlanningTask(
        captured,
        load_cluster("cpu"),
        inputs=kind.inputs,  # type: ignore[arg-type]
        recompute=kind.recompute,
        search=SearchSettings(epsilon=1e-2),
    )
    world = dist.get_world_size()
    frontier = find_frontier(task, world)
    for index in sorted({0, len(frontier) - 1}):
        yield f"point {index} of {len(frontier)}", frontier[index].plan
    *_, (captured, settings) = task.graphs(world)
    space = make_space(captured, settings)
    for seed in SEEDS:
        strategy = space.random_strategy(seed)
        yield f"random strategy, seed {seed}", Plan.of(space, settings, captured, strategy)


def compare(kind: Kind, label: str, plan: Plan) -> list[str]:
    """What differs between the plan and one process."""
    one = _made(kind)
    kind.after(one)
    parallel = parallelize(_made(kind), plan, **kind.options)
    kind.after(parallel)
    expected, got = _trained(kind, one), _trained(kind, parallel, share=kind.inputs == "sharded")
    return [f"{label}: {text}" for text in _differences(got, expected, kind.tolerance)]


def _made(kind: Kind) -> nn.Module:
    torch.manual_seed(0)
    model = kind.make()
    kind.before(model)
    return model


def _trained(kind: Kind, module: nn.Module, share: bool = False) -> _Run:
    optimizer = kind.optimizer(module.parameters())
    losses = []
    for number, batch in enumerate(kind.batches):
        if kind.between is not None:
            kind.between(module, number)
        optimizer.zero_grad()
        loss = kind.step(module, *(map(_share, batch) if share else batch), **kind.keywords)
        loss.backward()
        losses.append(float(loss.detach()))
        if number < len(kind.batches) - 1:
            optimizer.step()
    tensors = {f"parameter {n}": whole(p) for n, p in module.named_parameters()}
    tensors |= {
        f"gradient {n}": whole(p.grad) for n, p in module.named_parameters() if p.grad is not None
    }
    tensors |= {f"buffer {n}": whole(b) for n, b in module.named_buffers()}
    return _Run(losses, tensors)


def _share(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    return value.chunk(dist.get_world_size())[dist.get_rank()]


def _differences(got: _Run, expected: _Run, tolerance: float) -> Iterator[str]:
    for number, (a, b) in enumerate(zip(got.losses, expected.losses, strict=True)):
        if not abs(a - b) <= tolerance * max(abs(b), 1e-3):
            yield f"loss of step {number}: {a} instead of {b}"
    if got.tensors.keys() != expected.tensors.keys():
        yield f"only one has {sorted(got.tensors.keys() ^ expected.tensors.keys())}"
        return
    for name, b in expected.tensors.items():
        error = float((got.tensors[name] - b).abs().max()) if b.numel() else 0.0
        if not error <= tolerance * max(float(b.abs().max()) if b.numel() else 0.0, 1e-6):
            yield f"{name} is off by {error}"
