"""Tensor reuse: what is kept before, after or both is what runs in backward."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import _C
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime import ops
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.runtime.test_reuse_modes"
MODES = ["before", "after", "both"]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16, bias=False),
        nn.Tanh(),
        nn.Linear(16, 16, bias=False),
        nn.Linear(16, 4, bias=False),
    )


def plan_with(mode: str, task: PlanningTask) -> tuple[Plan, int]:
    """A random strategy in which reshards that may keep ``mode`` do, and how many
    of these run collectives. 'both' occurs where the producer keeps its output."""
    settings = task.settings(dist.get_world_size())
    space = make_space(task.captured, settings)
    for seed in range(500):
        strategy = space.random_strategy(seed)
        edges = space.edges_of(strategy)
        kept = [edge for edge in edges if edge.saved.edge_word == mode]
        gathered = [e for e in kept if "S" in e.layout_from and e.layout_to == "R"]
        others = [e for e in edges if e.saved == _C.Saved.REMADE and mode != "before"]
        if gathered and not others:
            return Plan.of(space, settings, task.captured, strategy), len(gathered)
    raise AssertionError(f"no strategy keeps {mode}")


def count_gathers(mode: str) -> tuple[int, int, int, float]:
    """Reshards that keep ``mode``; programs run by forward, by backward; error."""
    whole = model().double()
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).double()
    y = torch.zeros(4, 4, dtype=torch.float64)
    captured = capture(whole, (x,), loss_fn=nn.functional.mse_loss, targets=(y,))
    plan, expected = plan_with(mode, PlanningTask(captured, load_cluster("cpu")))
    module = parallelize(whole, captured, plan, torch.device("cpu"))
    space = make_space(captured, plan.settings)
    program = _C.RankProgram(space, plan.choices.strategy(space), dist.get_rank())
    edges = range(len(space.edges()))
    backward_programs = sum(bool(program.reshard(edge).backward.steps) for edge in edges)
    loss = module(x, y)
    ops.reset_collective_counts()
    loss.backward()
    programs = ops.collective_counts().programs
    nn.functional.mse_loss(whole(x), y).backward()
    error = max(
        float((p.grad.full_tensor() - q.grad).abs().max())  # type: ignore[union-attr]
        for p, q in zip(module.parameters(), whole.parameters(), strict=True)
    )
    return expected, backward_programs, programs, error


def run_modes(_: None) -> dict[str, tuple[int, int, int, float]]:
    return {mode: count_gathers(mode) for mode in MODES}


def test_only_tensors_kept_before_are_resharded_again_in_backward() -> None:
    for results in run_ranks(2, f"{HERE}:run_modes"):
        for mode, (kept, gradient_programs, programs, error) in results.items():
            assert error < 1e-12, mode
            assert kept >= 1, mode
            replays = programs - gradient_programs
            if mode == "before":
                assert replays >= kept, (mode, results)
            else:
                assert replays == 0, (mode, results)
