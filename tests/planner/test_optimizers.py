"""The states of optimizers have a dtype of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import OptimizerModel, Plan, StepSettings, cli
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.optimizer_model import OPTIMIZER_STATES
from tensoropt_torch.simulate.stock_optimizers import OPTIMIZERS, make_optimizer

WIDTH = 64
ELEMENTS = WIDTH * WIDTH + WIDTH
MASTER_FLAG = "--master-weights"
FLOAT32_STATES = OptimizerModel("adamw", "float32")
MASTER_WEIGHTS = OptimizerModel("adamw", "float32", master_weights=True)
# Bytes for each element of a bfloat16 parameter: itself, its gradient, and its state.
BYTES = {"sgd": 4, "adamw": 4 + 4, FLOAT32_STATES: 4 + 8, MASTER_WEIGHTS: 4 + 12}
Optimizer = str | OptimizerModel


def perceptron(dtype: torch.dtype = torch.bfloat16) -> tuple[nn.Module, tuple[torch.Tensor]]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1, bias=False))
    return model.to(dtype), (torch.randn(2, WIDTH, dtype=dtype),)


def plan_of(optimizer: Optimizer, dtype: torch.dtype = torch.bfloat16) -> Plan:
    model, args = perceptron(dtype)
    return tensoropt_torch.find_strategy(
        model,
        args,
        loss_fn=torch.mean,
        optimizer=optimizer,
        cluster="cpu",
        num_devices=1,
        measure=False,
    )


@pytest.mark.parametrize("optimizer", BYTES, ids=str)
def test_the_search_counts_bytes_of_states_in_their_dtype(optimizer: Optimizer) -> None:
    without = plan_of("sgd").memory_bytes - BYTES["sgd"] * ELEMENTS
    assert plan_of(optimizer).memory_bytes == without + BYTES[optimizer] * ELEMENTS


def test_the_command_takes_their_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = f"{Path(__file__).with_name('half_model_file.py')}:build"
    where = [model, "--cluster", "cpu", "--devices", "1", "--output"]
    plans = {}
    for flags in ((), ("--state-dtype", "float32"), ("--state-dtype", "float32", MASTER_FLAG)):
        path = tmp_path / "plan.json"
        assert cli.main(["plan", *where, str(path), *flags]) == 0
        plans[flags] = Plan.load(path).memory_bytes
    plain, float32, master = plans.values()
    assert float32 - plain == 4 * ELEMENTS
    assert master - float32 == 4 * ELEMENTS
    assert cli.main(["plan", *where, str(path), MASTER_FLAG]) != 0
    assert "state_dtype" in capsys.readouterr().err


@pytest.mark.parametrize("optimizer", BYTES, ids=str)
def test_the_simulation_agrees_with_the_search(optimizer: Optimizer) -> None:
    plan, (model, args) = plan_of(optimizer), perceptron()
    captured = capture(model, args, loss_fn=torch.mean)
    step = StepSettings(optimizer)
    found = tensoropt_torch.simulate_memory(model, plan.with_model(captured), step=step)
    state = found.categories["optimizer state"]
    scalars = 4 * 2  # the number of steps of each parameter
    assert 0 <= state - (BYTES[optimizer] - 4) * ELEMENTS <= scalars


def test_float32_parameters_have_no_master_weights() -> None:
    plain, master = (
        plan_of(optimizer, torch.float32).memory_bytes for optimizer in ("adamw", MASTER_WEIGHTS)
    )
    assert master == plain


def test_the_names_of_the_search_are_those_of_the_simulation() -> None:
    assert list(OPTIMIZER_STATES) == list(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZER_STATES)
def test_states_of_torch_optim_are_counted(name: str) -> None:
    """In the dtype of the parameter."""
    parameter = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))
    optimizer = make_optimizer(name, [parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = [v for v in optimizer.state[parameter].values() if torch.is_tensor(v)]
    found = sum(s.numel() * s.element_size() for s in states if s.numel() == WIDTH)
    assert found == OptimizerModel(name).state_bytes()["bfloat16"] * WIDTH


def test_master_weights_keep_updates_that_bfloat16_rounds_off() -> None:
    """The optimizer that stands for them trains as it should."""
    updates = {}
    for model in (OptimizerModel("sgd"), FLOAT32_STATES, MASTER_WEIGHTS):
        parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        optimizer = make_optimizer(model, [parameter], lr=1e-4)
        for _ in range(100):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        updates[model] = float(1 - parameter.detach()[0])
    assert updates[FLOAT32_STATES] == 0  # 1 - 1e-4 is 1 in bfloat16
    assert updates[MASTER_WEIGHTS] == pytest.approx(1e-2, rel=0.3)


def test_plans_carry_the_optimizer() -> None:
    plan = plan_of(MASTER_WEIGHTS)
    again = Plan.from_json(plan.to_json())
    assert again.settings == plan.settings
    assert again.settings.optimizer == "adamw with float32 states and master weights"
    assert again.settings.optimizer_state_bytes["bfloat16"] == 12


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        ("adam_w", "did you mean 'adamw'"),
        (OptimizerModel("lion"), "optimizer 'lion'"),
        (OptimizerModel("adam", "int8"), "state_dtype 'int8'"),  # type: ignore[arg-type]
        (OptimizerModel("adam", master_weights=True), "state_dtype='float32'"),
        (torch.optim.AdamW, "by its name"),
    ],
)
def test_wrong_descriptions_are_refused(optimizer: Any, text: str) -> None:
    with pytest.raises(TensorOptError, match=text):
        plan_of(optimizer)
