"""Gradients are clipped as in one process, with one collective."""

from __future__ import annotations

import copy
import itertools
import math
import random

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing import assert_close

import tensoropt_torch
from tensoropt_torch import Plan, TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks
from tests.distributed.models import make

HERE = "tests.distributed.steps.test_clipping"
RANKS = 4
NORMS = (1.0, 2.0, 3.5, math.inf)


def reference(norm_type: float, max_norm: float) -> tuple[float, list[torch.Tensor]]:
    case = make("gpt", torch.float64)
    outside = nn.Parameter(torch.ones(3, dtype=torch.float64))
    (case.loss() + (outside * 0.5).sum()).backward()
    parameters = [*case.model.parameters(), outside]
    norm = nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
    return float(norm), [p.grad for p in parameters if p.grad is not None]


def modules(seed: int) -> list[ParallelModule]:
    """Some strategies, with replicated and split parameters."""
    case = make("gpt", torch.float64)
    captured = capture(case.model, case.args, **case.keywords)
    task = PlanningTask(captured, tensoropt_torch.load_cluster("cpu"))
    settings = task.settings(RANKS)
    space = make_space(captured, settings)
    plans = [
        Plan.of(space, settings, captured, space.random_strategy(s)) for s in range(seed, seed + 4)
    ]
    return [tensoropt_torch.parallelize(copy.deepcopy(case.model), plan) for plan in plans]


def clip(seed: int) -> None:
    case = make("gpt", torch.float64)
    found = modules(seed)
    for norm_type, max_norm in itertools.product(NORMS, (0.1, 1e6)):
        expected_norm, expected = reference(norm_type, max_norm)
        for module in found:
            module.zero_grad()
            outside = nn.Parameter(torch.ones(3, dtype=torch.float64))
            (module(*case.args, *case.targets) + (outside * 0.5).sum()).backward()
            parameters = [*module.parameters(), outside]
            with CommDebugMode() as counts:
                norm = tensoropt_torch.clip_grad_norm_(parameters, max_norm, norm_type)
            assert counts.get_total_counts() == 1
            assert type(norm) is torch.Tensor and norm.dtype == torch.float64
            assert float(norm) == pytest.approx(expected_norm, rel=1e-10)
            for p, gradient in zip(parameters, expected, strict=True):
                assert p.grad is not None
                got = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
                assert_close(got, gradient, rtol=1e-9, atol=1e-12)


def test_norm_and_gradients_are_those_of_one_process() -> None:
    seed = random.randrange(1000)
    print(f"seed {seed}")
    run_ranks(RANKS, f"{HERE}:clip", seed, 120)


def rest(_: None) -> None:
    case = make("gpt", torch.float64)
    batch = (*case.args, *case.targets)
    expected_norm, _ = reference(2.0, 1e6)
    (module, *_) = modules(0)
    with module.no_sync():  # gradients that wait are reduced first
        module(*batch).backward()
    norm = tensoropt_torch.clip_grad_norm_(module.parameters(), 1e6)
    assert float(norm**2 + 0.75) == pytest.approx(expected_norm**2, rel=1e-10)
    assert float(tensoropt_torch.clip_grad_norm_([], 1.0)) == 0
    turned = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    turned.grad = torch.tensor([3j, 4])
    assert float(tensoropt_torch.clip_grad_norm_(turned, 1.0)) == 5
    assert_close(turned.grad, torch.tensor([0.6j, 0.8]))
    one = next(module.parameters())
    assert one.grad is not None
    assert float(tensoropt_torch.clip_grad_norm_(one, 1e6)) == pytest.approx(
        float(one.grad.full_tensor().norm()), rel=1e-10
    )
    with pytest.raises(TensorOptError, match="norm_type = 0"):
        tensoropt_torch.clip_grad_norm_(module.parameters(), 1.0, 0)
    if dist.get_rank() == 0:  # on one rank alone
        one.grad._local_tensor.fill_(math.nan)
    with pytest.raises(RuntimeError, match="norm of the gradients is nan"):
        tensoropt_torch.clip_grad_norm_(module.parameters(), 1.0, error_if_nonfinite=True)


def test_what_else_is_asked_of_it() -> None:
    run_ranks(RANKS, f"{HERE}:rest", None, 120)
