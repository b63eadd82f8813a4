"""Parameters that are kept by parts of their blocks, as users and checkpoints see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

import tensoropt_torch
from tensoropt_torch import ParallelModule
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.values.placements import is_strided
from tests.distributed.fused_models import Fused, split_and_gated
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.frontend.test_fused"
SEEDS = range(60)
PLANS = 6
FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def fused(seed: int = 0) -> Fused:
    torch.manual_seed(seed)
    return split_and_gated().double()


def batch() -> torch.Tensor:
    return torch.randn(8, 8, 32, generator=torch.Generator().manual_seed(1)).double()


def strided(module: nn.Module) -> dict[str, tuple[object, ...]]:
    """The placements of parameters that are kept by parts of their blocks."""
    parameters = module.named_parameters()
    own = {n: p.placements for n, p in parameters if isinstance(p, DTensor)}
    return {name: placements for name, placements in own.items() if is_strided(placements)}


def random_modules(model: nn.Module) -> Iterator[ParallelModule]:
    """Under random strategies, such that placements of blocks are not those of one before."""
    captured = capture(model, (batch(),))
    settings = PlanningTask(captured, load_cluster("cpu")).settings(dist.get_world_size())
    space = make_space(captured, settings)
    seen: set[str] = set()
    for seed in SEEDS:
        plan = Plan.of(space, settings, captured, space.random_strategy(seed))
        module = tensoropt_torch.parallelize(model, plan)
        key = str(sorted(strided(module).items()))
        if key not in seen and len(seen) < PLANS and strided(module):
            seen.add(key)
            yield module
    assert len(seen) == (PLANS if dist.get_world_size() > 3 else len(seen)) > 0


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        module(batch()).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad()


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-4)


def full(state: object) -> object:
    return torch.utils._pytree.tree_map_only(DTensor, lambda t: t.full_tensor(), state)


def assert_same(got: object, expected: object) -> None:
    leaves = zip(*(torch.utils._pytree.tree_leaves(full(s)) for s in (got, expected)), strict=True)
    for a, b in leaves:
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def check_values(_: None) -> None:
    """Whole tensors in, whole tensors out, in all ways that there are."""
    model, other = fused(0), fused(1)
    expected, others = model.state_dict(), other.state_dict()
    for module in random_modules(model):
        assert_same(module.state_dict(), expected)
        assert_same(
            {n: p * 2 for n, p in module.named_parameters()},
            {n: v * 2 for n, v in expected.items()},
        )
        module.load_state_dict(others)
        assert_same(dict(module.named_parameters()), others)
        given = expected if dist.get_rank() == 0 else {}
        set_model_state_dict(module, dict(given), options=FROM_FIRST)
        assert_same(module.state_dict(), expected)
        whole = get_model_state_dict(module, options=WHOLE)
        if dist.get_rank() == 0:
            assert_same(whole, expected)
        whole = tensoropt_torch.full_state_dict(module)
        if dist.get_rank() == 0:
            assert_same(whole, expected)


def check_other_layouts(_: None) -> None:
    """State dicts of one plan are loaded under others."""
    states = []
    for module in random_modules(fused(0)):
        for state in states:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.zero_()
            module.load_state_dict(state)
            assert_same(module.state_dict(), fused(0).state_dict())
        states.append({n: p.detach().clone() for n, p in module.named_parameters()})
    assert len(states) > 1


def state_of(module: ParallelModule, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    weights, of_optimizer = get_state_dict(module, optimizer)
    return {"model": weights, "optimizer": of_optimizer}


def check_checkpoints(folder: Path) -> None:
    """What one plan has written is what others and PyTorch alone read."""
    saved: dict[str, object] = {}
    for number, module in enumerate(random_modules(fused(0))):
        optimizer = adamw(module)
        train(module, optimizer, 2)
        state = state_of(module, optimizer)
        if number == 0:
            dcp.save(state, checkpoint_id=folder / "first")
            saved = full(state)  # type: ignore[assignment]
            tensoropt_torch.save(state, folder / "one.pt")
            plain = fused(5)
            weights = {"model": plain.state_dict()}
            dcp.load(weights, checkpoint_id=folder / "first")
            assert_same(weights["model"], saved["model"])
            dcp.save({"model": weights["model"]}, checkpoint_id=folder / "plain")
        else:
            for source in ("first", "plain"):
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.zero_()
                read = state_of(module, optimizer)
                if source == "plain":
                    del read["optimizer"]
                dcp.load(read, checkpoint_id=folder / source)
                set_model_state_dict(module, read["model"])  # type: ignore[arg-type]
                assert_same(module.state_dict(), saved["model"])
            read = state_of(module, optimizer)
            dcp.load(read, checkpoint_id=folder / "first")
            set_state_dict(
                module,
                optimizer,
                model_state_dict=read["model"],  # type: ignore[arg-type]
                optim_state_dict=read["optimizer"],  # type: ignore[arg-type]
            )
            assert_same(state_of(module, optimizer), saved)


def check_steps(_: None) -> None:
    """With gradients that wait, PyTorch's clipping, and evaluation in between."""
    x = batch()
    for module in random_modules(fused(0)):
        reference = fused(0)
        own, theirs = adamw(module), adamw(reference)
        for _ in range(2):
            with module.no_sync():
                module(x[:4]).backward()
            module(x[4:]).backward()
            for half in (x[:4], x[4:]):
                reference(half).backward()
            for p, q in zip(module.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=1e-9, atol=1e-12)
            with module.no_sync():
                module(x[:4]).backward()
            reference(x[:4]).backward()
            norms = [
                tensoropt_torch.clip_grad_norm_(module.parameters(), 1e-2),
                torch.nn.utils.clip_grad_norm_(reference.parameters(), 1e-2),
            ]
            torch.testing.assert_close(*norms)
            for optimizer in (own, theirs):
                optimizer.step()
                optimizer.zero_grad()
            module.eval()
            with torch.no_grad():
                torch.testing.assert_close(module(x), reference(x))
            module.train()
        for p, q in zip(module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p.full_tensor(), q.detach(), rtol=1e-8, atol=1e-10)


CHECKS = {"values": check_values, "other layouts": check_other_layouts, "steps": check_steps}


def run_check(name: str) -> None:
    CHECKS[name](None)


@pytest.mark.parametrize(
    ("name", "world_size"),
    [
        ("values", 2),
        ("steps", 2),
        # Two processes have one layout of blocks only.
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in CHECKS),
    ],
)
def test_parts_of_blocks_make_whole_tensors(name: str, world_size: int) -> None:
    run_ranks(world_size, f"{HERE}:run_check", name, 240)


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_checkpoints_of_parts_of_blocks(tmp_path: Path, world_size: int) -> None:
    run_ranks(world_size, f"{HERE}:check_checkpoints", tmp_path, 240)
