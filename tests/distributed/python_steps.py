"""Functions and hooks in steps of other kinds: micro-batches, recomputation, ``no_sync``, saved
plans, evaluation, compiled graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import parallelize
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import load_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed import python_functions as functions
from tests.distributed import python_hooks as hooks
from tests.distributed.kinds import Kind, compare
from tests.distributed.parity import whole

SEEDS = (1, 2)


def _quiet() -> None:
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")


def _plans(
    make: Callable[[], nn.Module],
    count: int = 1,
    before: Callable[[nn.Module], Any] = lambda module: None,
    recompute: bool = False,
) -> Iterator[Plan]:
    """Random ones."""
    torch.manual_seed(0)
    model = make()
    before(model)
    captured = capture(model, functions.batches()[0])
    parts = (micro_batched(captured, count),) if count > 1 else ()
    task = PlanningTask(captured, load_cluster("cpu"), recompute=recompute, in_micro_batches=parts)
    *_, (part, settings) = task.graphs(dist.get_world_size())
    space = make_space(part, settings)
    for seed in SEEDS:
        plan = Plan.of(space, settings, part, space.random_strategy(seed))
        yield replace(plan, captured=captured)


def _compared(label: str, kind: Kind, plans: Iterator[Plan]) -> list[str]:
    return [
        f"{label}: {text}"
        for seed, plan in zip(SEEDS, plans, strict=True)
        for text in compare(kind, f"seed {seed}", plan)
    ]


MICRO_BATCHED: Sequence[tuple[Any, Any]] = (
    (functions.Reversed, lambda module: None),
    (functions.Codebook, lambda module: None),
    (functions.Quantised, lambda module: None),
    (functions.Classifier, hooks.masked_weight),
    (functions.Classifier, hooks.accumulated),
)


def micro_batches(_: Any) -> list[str]:
    _quiet()
    found = []
    for make, before in MICRO_BATCHED:
        kind = Kind(make, functions.batches(), before=before)
        found += _compared(make.__name__, kind, _plans(make, 4, before))
    return found


REFUSED = (
    (functions.Clipped, lambda module: None),
    (functions.Injected, lambda module: None),
    (hooks.TensorHook, lambda module: None),
    (hooks.Blocks, hooks.full_backward),
)


def refused_micro_batches(_: Any) -> list[str]:
    """The messages, by model."""
    _quiet()
    found = []
    for make, before in REFUSED:
        try:
            next(_plans(make, 4, before))
        except TensorOptError as error:
            found.append(str(error))
    return found


def recomputed(_: Any) -> list[str]:
    _quiet()
    found = []
    for make in (functions.Router, functions.Codebook, hooks.HoldingHook, hooks.TwoHooks):
        kind = Kind(make, functions.batches())
        found += _compared(make.__name__, kind, _plans(make, recompute=True))
    return found


def compiled(_: Any) -> list[str]:
    _quiet()
    kind = Kind(functions.Valued, functions.batches(), options={"compile": "aot_eager"})
    found = _compared("valued", kind, _plans(functions.Valued))
    kind = Kind(hooks.HoldingHook, functions.batches(), options={"compile": "aot_eager"})
    return found + _compared("holding", kind, _plans(hooks.HoldingHook))


def saved_plan(_: Any) -> list[str]:
    """A plan that comes from a file finds the operators again."""
    _quiet()
    (first, *_) = _plans(functions.Quantised)
    loaded = Plan.from_json(first.to_json())
    one, other = _made(functions.Quantised), _made(functions.Quantised)
    args = functions.batches()[0]
    parallel = parallelize(other, loaded, args)
    return _steps(one, parallel)


def unsynchronised(_: Any) -> list[str]:
    """Hooks of parameters run in every pass, on what the pass gives or has been added up."""
    _quiet()
    found = []
    for before in (hooks.masked_weight, hooks.accumulated, hooks.doubled):
        for plan in _plans(functions.Quantised, before=before):
            one, other = _made(functions.Quantised), _made(functions.Quantised)
            before(one)
            before(other)
            found += _steps(one, parallelize(other, plan), no_sync=True)
    return found


def removed_later(_: Any) -> list[str]:
    """Handles of hooks that were set before go on to work."""
    _quiet()
    found = []
    for plan in _plans(hooks.Blocks, before=hooks.full_backward):
        handles = []
        pair = []
        for _ in range(2):
            module = _made(hooks.Blocks)
            hooks.full_backward(module)
            weight = module.get_parameter("first.weight")
            handles.append(weight.register_hook(lambda g: g * 100))
            pair.append(module)
        one, other = pair
        parallel = parallelize(other, plan)
        for handle in handles:
            handle.remove()
        for module in (one, other):
            module.get_submodule("block")._backward_hooks.clear()
        found += _steps(one, parallel)
    return found


def evaluated(_: Any) -> list[str]:
    """Another variant, without gradients."""
    _quiet()
    found = []
    x, y = functions.batches()[0]
    for make in (functions.Codebook, functions.Valued, hooks.Blocks):
        for plan in _plans(make):
            one, other = _made(make), parallelize(_made(make), plan, (x, y))
            one.eval()
            other.eval()
            with torch.no_grad():
                if not torch.allclose(one(x[:8], y[:8]), other(x[:8], y[:8])):
                    found.append(make.__name__)
    return found


def hooks_that_came_later(_: Any) -> str:
    """Between the plan and the module."""
    _quiet()
    plan = next(_plans(hooks.Blocks))
    model = _made(hooks.Blocks)
    hooks.full_backward(model)
    try:
        parallelize(model, plan)
    except TensorOptError as error:
        return str(error)
    return ""


def attributes_of_hooks(_: Any) -> list[bool]:
    """A hook that keeps a gradient at ``self`` keeps it at the parallel module."""
    _quiet()
    found = []
    for plan in _plans(Keeping):
        model = _made(Keeping)
        parallel = parallelize(model, plan)
        parallel(*functions.batches()[0]).backward()
        one = _made(Keeping)
        one(*functions.batches()[0]).backward()
        found.append(torch.allclose(parallel.kept, one.kept) and model.kept is None)
    return found


class Keeping(functions.Classifier):
    kept: Any = None

    def keep(self, gradient: torch.Tensor) -> None:
        self.kept = gradient

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        h.register_hook(self.keep)
        return h * 2


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def _steps(one: nn.Module, parallel: nn.Module, no_sync: bool = False) -> list[str]:
    """What differs after two passes of backward, of which the first need not be reduced."""
    first, second = functions.batches()
    one(*first).backward()
    if no_sync:
        with parallel.no_sync():  # type: ignore[operator]
            parallel(*first).backward()
    else:
        parallel(*first).backward()
    one(*second).backward()
    parallel(*second).backward()
    own = dict(parallel.named_parameters())
    return [
        f"{name} is off by {error}"
        for name, p in one.named_parameters()
        if (error := float((whole(own[name].grad) - p.grad).abs().max())) > 1e-10
    ]
