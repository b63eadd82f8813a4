"""What is done between calls to a module in stages, against one process: attributes that change,
reads and writes of parameters; and what is done between a forward and its backward."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tensoropt_torch import TensorOptError, find_stages, find_strategy, parallelize
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.parameters.test_stage_parameters"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = 1.0
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.tanh(self.first(x)) * self.scale
        return self.second(self.drop(hidden))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = torch.randn(2, 8, 8, generator=generator, dtype=torch.float64)
    return made[0], made[1]


def loss_of(module: nn.Module, in_stages: bool) -> torch.Tensor:
    x, y = batch()
    loss: torch.Tensor = module(x, y) if in_stages else F.mse_loss(module(x), y)
    return loss


def told(module: nn.Module, in_stages: bool) -> dict[str, Any]:
    """What one sees of it, of the parameters that this rank has."""
    found: dict[str, Any] = {}
    loss = loss_of(module, in_stages)
    loss.backward()
    found["loss"] = loss.item()
    for scale in (2.0, 3.0, 1.0):
        module.scale = scale  # type: ignore[assignment]
        with torch.no_grad():
            found[f"scale {scale}"] = loss_of(module, in_stages).item()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        found[f"norm of {name}"] = parameter.norm().item()
        found[f"norm of the gradient of {name}"] = float(f"{parameter.grad.norm():.9f}")
        found[f"list of {name}"] = parameter.tolist()
        penalty = F.mse_loss(parameter, torch.zeros_like(parameter))
        found[f"penalty of {name}"] = torch.autograd.grad(penalty, parameter)[0].sum().item()
        with torch.no_grad():
            parameter[0] = 0.5
            parameter.mul_(2)
            found[f"sum of {name}"] = parameter.sum().item()
            parameter.copy_(torch.full(parameter.shape, 0.125, dtype=torch.float64))
    with torch.no_grad():
        found["loss of what was written"] = loss_of(module, in_stages).item()
    for parameter in module.parameters():
        parameter.data = torch.full(parameter.shape, 0.25, dtype=torch.float64)
    found["loss of other data"] = loss_of(module, in_stages).item()
    return found


def refused(module: nn.Module) -> list[str]:
    parameter = next(module.parameters())
    errors = []
    for action in (
        lambda: nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else None,
        lambda: torch.save(module.state_dict(), io.BytesIO()),
    ):
        try:
            action()
        except TensorOptError as error:
            errors.append(str(error))
    return errors


def compare(_: None) -> list[str]:
    torch.manual_seed(0)
    model = Scaled().double()
    expected = told(copy.deepcopy(model), in_stages=False)
    x, y = batch()
    plan = find_stages(
        model, (x,), measure=False, loss_fn=F.mse_loss, targets=(y,), stages=2, micro_batches=2
    )
    parallel = parallelize(copy.deepcopy(model), plan)
    found = told(parallel, in_stages=True)
    wrong = [
        f"{name}: {found[name]} instead of {expected[name]}"
        for name in found
        if not torch.allclose(torch.tensor(found[name]), torch.tensor(expected[name]), 1e-8, 1e-8)
    ]
    errors = refused(parallel)
    return wrong if len(errors) == 2 else [*wrong, *errors]


@pytest.mark.parametrize("ranks", [2, 4])
def test_it_counts_as_in_one_process(ranks: int) -> None:
    assert run_ranks(ranks, f"{HERE}:compare") == [[]] * ranks


def between(_: None) -> list[str]:
    """A parameter is frozen before backward, and inputs that ranks compare have strides."""
    wrong = []
    for dtype in (torch.int64, torch.bool, torch.bfloat16, torch.float64):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
        x = torch.ones(8, 8, dtype=dtype)[:, ::2].double() if dtype.is_floating_point else None
        ids = None if x is not None else torch.ones(8, 8, dtype=dtype)[:, ::2]
        given = (x,) if x is not None else (ids,)
        module = model if x is not None else _Looks(model)
        parallel = parallelize(module, find_strategy(module, given, max_micro_batches=1))
        for _turn in range(3):
            loss = parallel(*given).square().mean()
            frozen = next(iter(parallel.parameters()))
            frozen.requires_grad_(False)
            loss.backward()
            if frozen.grad is not None:
                wrong.append(f"{dtype}: a frozen parameter has a gradient")
            if any(p.grad is None for p in list(parallel.parameters())[1:]):
                wrong.append(f"{dtype}: others have none")
            frozen.requires_grad_(True)
            parallel.zero_grad()
    return wrong


class _Looks(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(ids.double())
        return made


def test_what_is_frozen_before_backward_gets_no_gradient() -> None:
    assert run_ranks(2, f"{HERE}:between") == [[]] * 2
