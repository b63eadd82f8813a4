"""Bad input: one clear ValueError on every rank, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from tensoropt_torch import TensorOptError
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime.agreement import on_all_ranks
from tests.distributed.harness import run_ranks
from tests.distributed.models import Case, make

HERE = "tests.distributed.runtime.test_errors"


def case() -> Case:
    return make("mlp", torch.float32)


def plan_for(what: Case, devices: int, **changes: object) -> Plan:
    frontier = tensoropt_torch.find_frontier(
        what.model, what.args, num_devices=devices, **what.keywords, **changes
    )
    return frontier.fastest.plan


def wrong_world_size() -> None:
    what = case()
    tensoropt_torch.parallelize(what.model, plan_for(what, 4))


def plan_of_another_model() -> None:
    what = case()
    wider = Case(nn.Linear(16, 8), what.args, what.loss_fn, what.targets)
    plan = replace(plan_for(wider, 2), captured=None)
    tensoropt_torch.parallelize(what.model, plan, what.args, **what.keywords)


def memory_limit_below_the_frontier() -> None:
    what = case()
    tensoropt_torch.find_strategy(
        what.model, what.args, memory_limit=9000, measure=False, **what.keywords
    )


def batch_that_does_not_divide() -> None:
    model = nn.Linear(16, 8)
    tensoropt_torch.find_strategy(model, (torch.randn(7, 16),), inputs="sharded", measure=False)


def wrong_share_of_the_batch() -> None:
    what = case()
    plan = plan_for(what, 2, inputs="sharded")
    module = tensoropt_torch.parallelize(what.model, plan, shapes="fixed")
    module(*what.args, *what.targets)  # the whole batch instead of a share


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # the line that the error must name
            return x
        return -x


def model_that_cannot_be_captured() -> None:
    tensoropt_torch.find_strategy(Branching(), (torch.randn(4, 4),), measure=False)


def different_models_on_ranks() -> None:
    width = 8 + 8 * dist.get_rank()
    tensoropt_torch.find_strategy(nn.Linear(8, width), (torch.randn(4, 8),), measure=False)


def failure_on_one_rank() -> None:
    model = Branching() if dist.get_rank() == 1 else nn.Linear(4, 4)
    tensoropt_torch.find_strategy(model, (torch.randn(4, 4),), measure=False)


def different_plans_on_ranks() -> None:
    what = case()
    frontier = tensoropt_torch.find_frontier(what.model, what.args, **what.keywords)
    point = frontier.smallest if dist.get_rank() == 0 else frontier.fastest
    tensoropt_torch.parallelize(what.model, point.plan)


CASES: dict[str, tuple[Callable[[], None], list[str]]] = {
    "world size": (wrong_world_size, ["4 devices", "2 processes", "torchrun"]),
    "other model": (plan_of_another_model, ["another model", "fingerprint", "plan again"]),
    "memory limit": (
        memory_limit_below_the_frontier,
        ["2 devices", "8.789 KiB", "the least is", "at least 16 devices"],
    ),
    "batch": (batch_that_does_not_divide, ["'input'", "size 7", "2 devices", "replicated"]),
    "share": (wrong_share_of_the_batch, ["[8, 16]", "[4, 16]", "on this rank"]),
    "capture": (model_that_cannot_be_captured, ["Branching", "test_errors.py", "x.sum() > 0"]),
    "models": (different_models_on_ranks, ["model differs between ranks", "rank 0", "rank 1"]),
    "one rank": (failure_on_one_rank, ["Branching"]),
    "plans": (different_plans_on_ranks, ["plan differs between ranks", "broadcast"]),
}


def error_of(name: str) -> str:
    try:
        CASES[name][0]()
    except TensorOptError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("name", list(CASES))
def test_bad_input_is_one_clear_error_on_all_ranks(name: str) -> None:
    for message in run_ranks(2, f"{HERE}:error_of", name, 60):
        for part in CASES[name][1]:
            assert part in message, message


def failures_on_one_rank(error: Exception) -> str:
    def fails() -> None:
        if dist.get_rank() == 1:
            raise error

    try:
        on_all_ranks(fails)
    except Exception as found:
        return f"{type(found).__name__}: {found}"
    return "no error"


@pytest.mark.parametrize(
    ("error", "others"),
    [
        (NotImplementedError(), "FailedRankError: rank 1: (NotImplementedError)"),
        (KeyError("w"), "FailedRankError: rank 1: 'w' (KeyError)"),
        (ValueError(), "TensorOptError: rank 1: ValueError"),
        (TensorOptError("so"), "TensorOptError: rank 1: so"),
    ],
    ids=repr,
)
def test_a_failure_of_one_rank_has_its_kind_on_all(error: Exception, others: str) -> None:
    """Also one without words, which no rank may take for none."""
    assert run_ranks(2, f"{HERE}:failures_on_one_rank", error) == [others, others]
