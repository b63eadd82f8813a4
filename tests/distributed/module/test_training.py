"""What users do with the module: train, clip, save and load."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.tensor import DTensor

import tensoropt_torch
from tensoropt_torch.runtime import ops
from tests.distributed.harness import run_ranks
from tests.distributed.models import gpt, make, text_batches

HERE = "tests.distributed.module.test_training"
STEPS = 200


def curve(module: nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    losses = []
    for tokens, targets in text_batches(STEPS):
        loss = module(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def train_both(_: None) -> tuple[list[float], list[float], int]:
    torch.manual_seed(0)
    case = gpt()
    frontier = tensoropt_torch.find_frontier(case.model, case.args)
    parallel = tensoropt_torch.parallelize(case.model, frontier.smallest.plan)
    ops.reset_collective_counts()
    losses = curve(parallel)
    return losses, curve(case.model), ops.collective_counts().collectives


def test_the_loss_falls_over_200_steps_as_in_one_process() -> None:
    for got, expected, collectives in run_ranks(2, f"{HERE}:train_both", None, 300):
        assert collectives > STEPS
        assert sum(got[-10:]) / 10 < 0.8 * got[0]
        # Rounding differences grow along a run; they stay far below the fall.
        for a, b in zip(got, expected, strict=True):
            assert abs(a - b) < 2e-3 * b


def save_and_load(folder: str) -> dict[str, Any]:
    case = make("gpt", torch.float64)
    frontier = tensoropt_torch.find_frontier(case.model, case.args)
    first = tensoropt_torch.parallelize(case.model, frontier.smallest.plan)
    saved = first.state_dict()
    checkpoint.save(saved, checkpoint_id=folder)
    other = make("gpt", torch.float64).model
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    second = tensoropt_torch.parallelize(other, frontier.fastest.plan)
    state = second.state_dict()
    checkpoint.load(state, checkpoint_id=folder)
    second.load_state_dict(state)
    norm = nn.utils.clip_grad_norm_(_with_gradients(second, case.args), 1e-3)
    whole = nn.utils.clip_grad_norm_(_with_gradients(case.model, case.args), 1e-3)
    return {
        "names": (list(saved), list(case.model.state_dict())),
        "sharded": any(not p.placements[0].is_replicate() for p in first.parameters()),
        "loss": (float(second(*case.args).detach()), float(case.loss().detach())),
        "norm": (float(_full(norm)), float(whole)),
    }


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _with_gradients(model: nn.Module, args: tuple[torch.Tensor, ...]) -> list[nn.Parameter]:
    model(*args).backward()
    return list(model.parameters())


def test_checkpoints_move_between_strategies_and_norms_are_global() -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = run_ranks(4, f"{HERE}:save_and_load", str(Path(folder) / "checkpoint"), 120)
    for result in results:
        ours, theirs = result["names"]
        assert ours == theirs
        assert result["sharded"]
        for kind in ("loss", "norm"):
            got, expected = result[kind]
            assert abs(got - expected) < 1e-10 * abs(expected), kind


def drop(_: None) -> dict[str, Any]:
    """Dropout on a value that is split in the first dim, replicated in none."""
    torch.manual_seed(dist.get_rank())  # streams must not depend on it
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
    x = torch.ones(16, 4)
    plan = tensoropt_torch.find_strategy(model, (x,), measure=False)
    module = tensoropt_torch.parallelize(model, plan)
    outputs = [module(x).detach() for _ in range(2)]
    zeros = [float((o == 0).float().mean()) for o in outputs]
    return {"outputs": outputs, "zeros": zeros}


def test_dropout_differs_between_shards_and_steps_and_agrees_on_replicas() -> None:
    results = run_ranks(2, f"{HERE}:drop", None, 60)
    first, second = results[0]["outputs"]
    assert torch.equal(first, results[1]["outputs"][0])  # outputs are replicated
    assert not torch.equal(first == 0, second == 0)
    top, bottom = (first == 0).chunk(2)
    assert not torch.equal(top, bottom)
    for fraction in results[0]["zeros"]:
        assert 0.4 < fraction < 0.6  # 1024 draws: far beyond 6 standard deviations


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) + torch.rand_like(x)).sum()


class Masked(nn.Module):
    """A saved buffer, one that is not saved, and a constant in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("mask", torch.eye(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * self.scale @ self.mask + torch.tensor([1.0])).sum()


def keep_buffers(_: None) -> tuple[list[str], list[str], float, float]:
    torch.manual_seed(0)
    model, x = Masked(), torch.ones(4, 4)
    plan = tensoropt_torch.find_strategy(model, (x,), measure=False)
    module = tensoropt_torch.parallelize(model, plan)
    got, expected = (float(m(x).detach()) for m in (module, model))
    return list(module.state_dict()), list(model.state_dict()), got, expected


def test_state_dict_has_the_names_of_the_model() -> None:
    for ours, theirs, got, expected in run_ranks(2, f"{HERE}:keep_buffers", None, 60):
        assert sorted(ours) == sorted(theirs)
        assert abs(got - expected) < 1e-5


class Counter(nn.Module):
    """One buffer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("same", self.count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.linear(x).sum()


def count_steps(_: None) -> tuple[list[int], int]:
    model, x = Counter(), torch.ones(4, 4)
    model.count.fill_(10 * dist.get_rank() + 1)
    plan = tensoropt_torch.find_strategy(model, (x,), measure=False)
    module = tensoropt_torch.parallelize(model, plan)
    for _ in range(2):
        module(x).backward()
    state = module.state_dict()
    return [int(state[name]) for name in ("count", "same")], int(model.count)


def test_changed_buffers_are_equal_on_all_ranks_and_the_models_own_stay() -> None:
    results = run_ranks(2, f"{HERE}:count_steps", None, 60)
    assert results == [([3, 3], 1), ([3, 3], 11)]


def add_noise(_: None) -> float:
    torch.manual_seed(dist.get_rank())
    model, x = Noisy(), torch.ones(4, 4)
    plan = tensoropt_torch.find_strategy(model, (x,), measure=False)
    return float(tensoropt_torch.parallelize(model, plan)(x).detach())


def test_random_operators_without_a_rule_draw_the_same_on_all_ranks() -> None:
    first, second = run_ranks(2, f"{HERE}:add_noise", None, 60)
    assert first == second


def count_idle(_: None) -> int:
    """An identity strategy on one process runs no reshard at all."""
    case = make("mlp", torch.float32)
    frontier = tensoropt_torch.find_frontier(case.model, case.args, num_devices=1, **case.keywords)
    module = tensoropt_torch.parallelize(case.model, frontier.fastest.plan)
    ops.reset_collective_counts()
    module(*case.args, *case.targets).backward()
    return ops.collective_counts().programs


def test_one_process_runs_without_collectives() -> None:
    assert run_ranks(1, f"{HERE}:count_idle", None, 60) == [0]


def plan_with_measured_costs(_: None) -> tuple[str, int, int, int]:
    case = make("mlp", torch.float32)
    plan = tensoropt_torch.find_strategy(case.model, case.args, **case.keywords)
    fewest = tensoropt_torch.find_strategy(
        case.model, case.args, option="mini_parallelism", **case.keywords
    )
    return plan.hash, len(plan.settings.measured), fewest.num_devices, plan.num_devices


def test_measured_costs_give_one_plan_on_all_ranks() -> None:
    first, second = run_ranks(2, f"{HERE}:plan_with_measured_costs", None, 120)
    assert first == second
    _, curves, fewest, devices = first
    assert curves == 5  # one per collective over the only axis set
    assert (fewest, devices) == (1, 2)
