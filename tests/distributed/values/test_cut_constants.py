"""Large buffers that are kept in parts, as users, variants and checkpoints see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import tensoropt_torch
from tensoropt_torch import ParallelModule, TensorOptError
from tensoropt_torch.config import load_cluster
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks
from tests.distributed.table_models import ROWS, WIDTH, MovingTable, Tables, rows_of

HERE = "tests.distributed.values.test_cut_constants"
SEEDS = range(100)
PLANS = 3


def task_of(model: nn.Module) -> PlanningTask:
    return PlanningTask(capture(model, (rows_of(ROWS),)), load_cluster("cpu"))


def cut_plans(model: nn.Module) -> Iterator[tuple[Plan, set[str]]]:
    """Random strategies that keep the table in parts, and the names of all that is."""
    task = task_of(model)
    settings = task.settings(dist.get_world_size())
    space = make_space(task.captured, settings)
    found = 0
    for seed in SEEDS:
        plan = Plan.of(space, settings, task.captured, space.random_strategy(seed))
        part = RankPart(plan, task.captured, dist.get_rank())
        cut = {source.names[0] for source in part.cut_constants}
        if "table" in cut and found < PLANS:
            found += 1
            yield plan, cut
    assert found == PLANS


def model_of(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind().double()


def assert_same_buffers(module: nn.Module, expected: dict[str, Any]) -> None:
    found = dict(module.named_buffers())
    assert found.keys() == {"table"}
    table = found["table"]
    assert isinstance(table, DTensor)
    assert torch.equal(table.full_tensor(), expected["table"])


def check_buffers(_: None) -> list[bool]:
    """Parts of the table, whole tables in and out, and the loss of other calls."""
    model, other = model_of(Tables), model_of(Tables, 1)
    whole, folded_too = ROWS * WIDTH, []
    for plan, cut in cut_plans(model):
        module = tensoropt_torch.parallelize(model, plan)
        own = module.get_buffer("table")
        assert isinstance(own, DTensor)
        assert own.to_local().numel() < whole
        assert own.to_local().untyped_storage().nbytes() == own.to_local().nbytes
        folded_too.append(len(cut) > 1)
        assert_same_buffers(module, model.state_dict())
        module.load_state_dict(other.state_dict())
        assert_same_buffers(module, other.state_dict())
        saved = tensoropt_torch.full_state_dict(module)
        if dist.get_rank() == 0:
            assert torch.equal(saved["table"], other.state_dict()["table"])
        for rows in (rows_of(ROWS), rows_of(ROWS, 2), rows_of(1000)):  # the plan's, and variants
            torch.testing.assert_close(module(rows), other(rows), rtol=1e-10, atol=0)
        module.eval()
        with torch.no_grad():
            torch.testing.assert_close(
                module(rows_of(500)), other(rows_of(500)), rtol=1e-10, atol=0
            )
    return folded_too


@pytest.mark.parametrize("world_size", [2, 3])
def test_large_buffers_are_kept_in_parts(world_size: int) -> None:
    found = run_ranks(world_size, f"{HERE}:check_buffers", None)
    assert any(found[0])  # what capture computed as well


def check_changes(_: None) -> None:
    model = model_of(MovingTable)
    for plan in (point.plan for point in find_frontier(task_of(model), dist.get_world_size())):
        part = RankPart(plan, plan.captured, dist.get_rank())  # type: ignore[arg-type]
        assert not part.cut_constants
    expected = model_of(MovingTable)
    module = tensoropt_torch.parallelize(model, plan)
    assert not isinstance(module.get_buffer("table"), DTensor)
    torch.testing.assert_close(module(rows_of(ROWS)), expected(rows_of(ROWS)), rtol=1e-10, atol=0)
    torch.testing.assert_close(module.get_buffer("table"), expected.get_buffer("table"))


def test_what_training_changes_is_whole_on_every_device() -> None:
    run_ranks(2, f"{HERE}:check_changes", None)


def check_refusal(_: None) -> str:
    """A plan for evaluation keeps it in parts; training with it is refused on every rank."""
    model = model_of(MovingTable).eval()
    plan, _ = next(iter(cut_plans(model)))
    module: ParallelModule = tensoropt_torch.parallelize(model, plan)
    expected = model(rows_of(ROWS))
    torch.testing.assert_close(module(rows_of(ROWS)), expected, rtol=1e-10, atol=0)
    module.train()
    with pytest.raises(TensorOptError) as raised:
        module(rows_of(ROWS))
    return str(raised.value)


def test_changes_of_a_buffer_in_parts_are_refused() -> None:
    messages = run_ranks(2, f"{HERE}:check_refusal", None)
    assert all("buffer 'table' is stored in parts" in message for message in messages)
