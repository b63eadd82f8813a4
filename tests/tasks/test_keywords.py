"""Keywords of the public functions: known to editors, checked by name on every rank."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Example, PlanningOptions, StepSettings, TensorOptError, tf_style
from tensoropt_torch.tasks import ExampleKeywords, PlanningKeywords, StepKeywords
from tests.distributed.harness import run_ranks

HERE = "tests.tasks.test_keywords"
ROOT = Path(__file__).parents[2]

PLAN = (
    tensoropt_torch.find_frontier,
    tensoropt_torch.find_strategy,
    tensoropt_torch.profile,
    tensoropt_torch.compare,
    tensoropt_torch.explain,
    tensoropt_torch.find_tradeoffs,
    tensoropt_torch.validate,
    tensoropt_torch.auto_parallel,
)
RUN = (tensoropt_torch.parallelize, tensoropt_torch.simulate_memory)


def small() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    with torch.device("meta"):
        return nn.Linear(16, 16), (torch.zeros(8, 16),)


@pytest.mark.parametrize(
    ("keywords", "name", "whole"),
    [(PlanningKeywords, "planning", PlanningOptions), (StepKeywords, "step", StepSettings)],
)
def test_keywords_are_the_fields_of_the_options(
    keywords: type, name: str, whole: type[Any]
) -> None:
    found = get_type_hints(keywords)
    for key in get_type_hints(ExampleKeywords):
        del found[key]
    assert found.pop(name) == whole | None
    assert found == get_type_hints(whole)


def test_keywords_of_an_example_are_fields_of_it() -> None:
    found = get_type_hints(ExampleKeywords)
    assert set(found) == {part.name for part in fields(Example)} - {"model", "args", "kwargs"}
    assert found.items() <= get_type_hints(Example).items()


@pytest.mark.parametrize("function", PLAN)
def test_signatures_name_every_option(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    assert list(parameters)[:3] == ["model", "args", "kwargs"]
    for part in fields(PlanningOptions):
        assert parameters[part.name].default == getattr(PlanningOptions(), part.name)
    assert {"planning", "loss_fn", "targets"} <= set(parameters)


@pytest.mark.parametrize("function", [tf_style.find_frontier, tf_style.find_strategy])
def test_the_style_of_tensorflow_takes_the_same_options(function: Callable[..., Any]) -> None:
    names = set(inspect.signature(function).parameters)
    assert {part.name for part in fields(PlanningOptions)} | {"fetches", "num_devices"} <= names
    with pytest.raises(TensorOptError, match="takes no 'clustr'; did you mean 'cluster'"):
        function(clustr="cpu")


@pytest.mark.parametrize("function", [*PLAN, *RUN])
def test_misspelt_keywords_name_the_nearest(function: Callable[..., Any]) -> None:
    model, args = small()
    with pytest.raises(TensorOptError) as error:
        function(model, args, los_fn=None)
    assert f"{function.__name__}() takes no 'los_fn'; did you mean 'loss_fn'?" in str(error.value)
    assert "allowed: model, " in str(error.value)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("clustr", "cluster"), ("num_device", "num_devices"), ("memory_limits", "memory_limit")],
)
def test_options_and_the_functions_own_keywords_are_compared(given: str, nearest: str) -> None:
    model, args = small()
    wrong: dict[str, Any] = {given: 1}
    with pytest.raises(TensorOptError, match=f"'{given}'; did you mean '{nearest}'?"):
        tensoropt_torch.find_strategy(model, args, **wrong)


@pytest.mark.parametrize(
    ("name", "given", "nearest"),
    [
        ("inputs", "shard", "sharded"),
        ("space", "order", "ordered"),
        ("memory", "sum", "sums"),
        ("option", "minitime", "mini_time"),
    ],
)
def test_misspelt_choices_name_the_nearest(name: str, given: str, nearest: str) -> None:
    model, args = small()
    wrong: dict[str, Any] = {name: given}
    with pytest.raises(TensorOptError, match=f"{name}='{given}' is not known; did you mean"):
        tensoropt_torch.find_strategy(model, args, **wrong)
    right: dict[str, Any] = {name: nearest}
    assert tensoropt_torch.find_strategy(model, args, num_devices=2, **right).num_devices <= 2


def misspell_on_one_rank(function: str) -> str:
    model, args = small()
    rank = torch.distributed.get_rank()
    wrong: dict[str, Any] = {"loss_fm": None} if rank == 1 else {}
    if function == "choice":
        function, wrong = "find_strategy", {"inputs": "shard"} if rank == 1 else {}
    call = getattr(tensoropt_torch, function)
    more = [tensoropt_torch.find_frontier(model, args).fastest.plan]
    try:
        call(model, *(more if function == "parallelize" else []), args, **wrong)
    except TensorOptError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("function", ["find_strategy", "auto_parallel", "parallelize", "validate"])
def test_a_keyword_that_one_rank_misspells_is_an_error_of_all(function: str) -> None:
    texts = run_ranks(2, f"{HERE}:misspell_on_one_rank", function, 60)
    for text in texts:
        assert "takes no 'loss_fm'; did you mean 'loss_fn'?" in text
    assert texts[0].startswith("rank 1: ")


def test_a_choice_that_one_rank_misspells_is_an_error_of_all() -> None:
    texts = run_ranks(2, f"{HERE}:misspell_on_one_rank", "choice", 60)
    assert all("inputs='shard' is not known; did you mean 'sharded'?" in text for text in texts)


def test_an_example_stands_for_a_model_with_inputs() -> None:
    model, args = small()
    given = {"loss_fn": nn.functional.mse_loss, "targets": (torch.zeros(8, 16, device="meta"),)}
    example = Example(model, args, **given)
    one = tensoropt_torch.find_strategy(example, cluster="h100-8", num_devices=2)
    parts = tensoropt_torch.find_strategy(model, args, cluster="h100-8", num_devices=2, **given)
    assert one == parts
    peak = tensoropt_torch.simulate_memory(example, one, optimizer="sgd").peak_bytes
    assert peak == tensoropt_torch.simulate_memory(model, parts, optimizer="sgd").peak_bytes
    for name, value in {"args": args, "kwargs": {"x": args[0]}, **given}.items():
        wrong: dict[str, Any] = {name: value}
        with pytest.raises(TensorOptError, match=f"'{name}' is given beside an Example"):
            tensoropt_torch.find_frontier(example, **wrong)


def test_keywords_change_the_options_that_are_given() -> None:
    model, args = small()
    planning = PlanningOptions(cluster="h100-8", optimizer="sgd")
    found = tensoropt_torch.find_frontier(model, args, planning=planning, inputs="sharded")
    assert found.settings.cluster["name"] == "h100-8"
    assert found.settings.optimizer_state_bytes["float32"] == 0
    assert found.settings.inputs == "sharded"


CALLS = """
import torch
import tensoropt_torch as to

model, args = torch.nn.Linear(4, 4), (torch.zeros(4, 4),)
to.find_frontier(model, args, cluster="cpu", search=to.SearchSettings())
plan: to.Plan = to.find_strategy(to.Example(model, args), inputs="sharded", memory_limit=1e9)
to.find_frontier(model, args, clustr="cpu")
to.find_strategy(model, args, inputs="shard")
to.simulate_memory(model, plan, rank="first")
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_keywords(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    own = [line for line in done.stdout.splitlines() if line.startswith(str(file))]
    wrong = [line.split(":")[1] for line in own if ": error:" in line]
    assert wrong == ["8", "9", "10"], done.stdout
