"""Every option at every function that plans: it is heeded, or refused. A new option, or a new
function, is named here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from tensoropt_torch import (
    Example,
    MeasureOptions,
    PlanningOptions,
    SearchSettings,
    TensorOptError,
)

# What a value other than by default is refused for.
GIVEN: dict[str, Any] = {
    "cluster": "h100-8",
    "max_micro_batches": 2,
    "max_stages": 2,
    "memory": "sums",
    "measuring": MeasureOptions(budget_s=7.0),
    "validate": 3,
    "search": SearchSettings(epsilon=0.25),
}
JOBS = {"measuring", "validate"}
UNUSED = {
    "find_frontier": JOBS,
    "profile": JOBS,
    "compare": JOBS,
    "find_tradeoffs": JOBS,
    "explain": JOBS | {"max_micro_batches", "max_stages", "memory", "search"},
    "advise": JOBS | {"cluster", "max_stages"},
    "validate": {"validate", "max_stages", "memory", "search"},
}
# These take all, or refuse them with what else they are given.
OTHERS = {"find_strategy", "auto_parallel", "find_stages"}
MORE: dict[str, dict[str, Any]] = {
    "profile": {"device_counts": [2]},
    "find_tradeoffs": {"device_counts": [2]},
    "advise": {"machines": ["h100"], "device_counts": [2], "steps": 1},
}


def example() -> Example:
    with torch.device("meta"):
        return Example(nn.Linear(16, 16), (torch.empty(8, 16),), loss_fn=torch.sum)


@pytest.fixture
def job() -> Iterator[None]:
    """Of one process."""
    tensoropt_torch.init("gloo")
    yield
    dist.destroy_process_group()


def planning_functions() -> set[str]:
    """Public functions that take a ``planning``."""
    public = {name: getattr(tensoropt_torch, name) for name in tensoropt_torch.__all__}
    functions: dict[str, Callable[..., Any]] = {n: f for n, f in public.items() if callable(f)}
    return {
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and "planning" in inspect.signature(function).parameters
    }


def test_every_function_and_every_option_is_named_here() -> None:
    assert planning_functions() == UNUSED.keys() | OTHERS
    names = {part.name for part in fields(PlanningOptions)}
    of_the_space = names - GIVEN.keys() - {"measure"}
    assert of_the_space == {
        *("optimizer", "inputs", "space", "max_configs", "split_spatial", "recompute", "overlap"),
        *("reduce_dtype", "compiled", "pin", "forbid"),
    }


@pytest.mark.parametrize(
    ("function", "option"), [(name, option) for name in UNUSED for option in sorted(UNUSED[name])]
)
def test_what_has_no_effect_is_refused(function: str, option: str, job: None) -> None:
    call = getattr(tensoropt_torch, function)
    wanted = rf"^{option}=.* is not for {function}\(\), which .*; leave it out"
    for planning in (
        {option: GIVEN[option]},
        {"planning": PlanningOptions(**{option: GIVEN[option]})},
    ):
        with pytest.raises(TensorOptError, match=wanted):
            call(example(), **MORE.get(function, {}), **planning)
