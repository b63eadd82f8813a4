"""Parameters whose parts differ in size: what users see of them, and checkpoints between
plans."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor

import tensoropt_torch
from tensoropt_torch import ParallelModule, WeightSource
from tensoropt_torch.config import load_cluster
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks
from tests.distributed.models import Case, make

HERE = "tests.distributed.emit.test_uneven"
MODEL = "odd_257_tied"
TABLE = "table.weight"
# On 4 devices: rows in 4 parts, in 2, rows and columns, columns only.
STORAGES = ("S0,S0", "S0,R", "S0,S1", "S1,S0", "S1,S1")


def case(seed: int = 0) -> Case:
    made = make(MODEL, torch.float64)
    torch.manual_seed(seed)
    for parameter in made.model.parameters():
        nn.init.normal_(parameter)
    return made


def captured(made: Case) -> CapturedModel:
    return capture(made.model, made.args, **made.keywords)


def plan_with(layout: str, model: CapturedModel) -> Plan:
    """The first random strategy that stores the table so."""
    task = PlanningTask(model, load_cluster("cpu"))
    settings = task.settings(dist.get_world_size())
    space = make_space(model, settings)
    for seed in itertools.count():
        plan = Plan.of(space, settings, model, space.random_strategy(seed))
        if RankPart(plan, model, 0).storage[TABLE] == layout:
            return plan
    raise AssertionError


def modules(seed: int = 0) -> Iterator[tuple[str, ParallelModule]]:
    for layout in STORAGES:
        made = case(seed)
        yield layout, tensoropt_torch.parallelize(made.model, plan_with(layout, captured(made)))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-4)


def step(module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """The norm of the gradients, which are clipped."""
    module(*case().args).backward()
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return whole(norm)


def check_parameters(_: None) -> None:
    """They are what ``distribute_tensor`` makes, and train as in one process."""
    plain = case().model
    optimizer = optimizer_of(plain)
    expected = [step(plain, optimizer) for _ in range(2)]
    for layout, module in modules():
        for name, parameter in module.named_parameters():
            assert isinstance(parameter, DTensor)
            original = case().model.get_parameter(name).detach()
            own = distribute_tensor(original, parameter.device_mesh, parameter.placements)
            assert torch.equal(parameter.to_local(), own.to_local()), (layout, name)
            assert torch.equal(whole(parameter), original), (layout, name)
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, module.get_parameter(TABLE).to_local().shape)
        assert (len(set(rows)) > 1) == ("S0" in layout), (layout, rows)
        own_optimizer = optimizer_of(module)
        got = [step(module, own_optimizer) for _ in range(2)]
        torch.testing.assert_close(got, expected)
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(parameter.full_tensor(), plain.get_parameter(name))


def test_parameters_are_dtensors_of_the_whole() -> None:
    run_ranks(4, f"{HERE}:check_parameters", None, 200)


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    model_state, optimizer_state = get_state_dict(module, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def check_folders(folder: Path) -> None:
    """Saved under each plan, loaded under all others and without one: equal bits."""
    for layout, module in modules():
        optimizer = optimizer_of(module)
        step(module, optimizer)
        place = folder / layout
        dcp.save(state_of(module, optimizer), checkpoint_id=place)
        expected = {name: whole(t) for name, t in module.state_dict().items()}
        step(module, optimizer)
        for other_layout, other in modules(seed=1):
            other_optimizer = optimizer_of(other)
            state = state_of(other, other_optimizer)
            dcp.load(state, checkpoint_id=place)
            set_state_dict(
                other,
                other_optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            for name, tensor in other.state_dict().items():
                assert torch.equal(whole(tensor), expected[name]), (layout, other_layout, name)
            step(other, other_optimizer)
            for name, tensor in other.state_dict().items():
                torch.testing.assert_close(whole(tensor), whole(module.state_dict()[name]))
        plain = {name: torch.zeros_like(t) for name, t in expected.items()}
        dcp.load({"model": plain}, checkpoint_id=place)
        assert all(torch.equal(plain[name], t) for name, t in expected.items()), layout


def test_checkpoints_go_between_plans(tmp_path: Path) -> None:
    run_ranks(4, f"{HERE}:check_folders", tmp_path, 300)


def check_state_dicts(_: None) -> None:
    """Whole state dicts and those of other plans are loaded; checkpoints give values to a
    model on the meta device."""
    model = case(seed=3).model
    expected = copy.deepcopy(model.state_dict())
    for layout, module in modules():
        module.load_state_dict(expected)
        for other_layout, other in modules(seed=1):
            other.load_state_dict(module.state_dict())
            for name, tensor in other.state_dict().items():
                assert torch.equal(whole(tensor), expected[name]), (layout, other_layout, name)
        made = case()
        plan = plan_with(layout, captured(made))
        empty = tensoropt_torch.parallelize(
            made.model.to("meta"), plan, weights=WeightSource(checkpoint=expected)
        )
        for name, tensor in empty.state_dict().items():
            assert torch.equal(whole(tensor), expected[name]), (layout, name)


def test_state_dicts_of_any_plan_are_loaded() -> None:
    run_ranks(4, f"{HERE}:check_state_dicts", None, 300)


def check_three(_: None) -> list[str]:
    made = case()
    model = captured(made)
    stored = []
    for layout in ("S0", "S1"):
        module = tensoropt_torch.parallelize(made.model, plan_with(layout, model))
        table = module.get_parameter(TABLE)
        assert torch.equal(table.full_tensor(), made.model.get_parameter(TABLE))
        stored.append(f"{layout}: {tuple(table.to_local().shape)}")
    return stored


def test_rows_on_three_devices() -> None:
    results = run_ranks(3, f"{HERE}:check_three", None, 90)
    rows = [86, 86, 85]
    assert results == [[f"S0: ({n}, 12)", "S1: (257, 4)"] for n in rows]


@pytest.mark.parametrize(("size", "lengths"), [(7, [4, 3]), (1009, [505, 504])])
def test_an_embedding_is_cut_as_dtensor_cuts_it(size: int, lengths: list[int]) -> None:
    assert run_ranks(2, f"{HERE}:rows_of", size, 60) == lengths


def rows_of(size: int) -> int:
    made = make("odd_257", torch.float64)
    made.model.table = nn.Embedding(size, 12, dtype=torch.float64)  # type: ignore[assignment]
    tokens, targets = made.args
    model = capture(made.model, (tokens % size, targets))
    module = tensoropt_torch.parallelize(made.model, plan_with("S0", model))
    return int(module.get_parameter(TABLE).to_local().shape[0])
