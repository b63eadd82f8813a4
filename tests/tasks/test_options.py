"""An option reaches all that depends on it: what is planned, the keys of kept plans, the command
line and the docs. Each table here names every option, so that one that is new is named too."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from tensoropt_torch import _C, Example, MeasureOptions, PlanningOptions, SearchSettings
from tensoropt_torch.cli.arguments import add_memory_limit, add_model, planning_of
from tensoropt_torch.measure import plain_options
from tensoropt_torch.measure.kept.plans import conditions_of
from tensoropt_torch.measure.machine.key import key_of_job
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.options import SpaceKeywords, SpaceOptions, handed_to_core
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.space.settings import Settings
from tensoropt_torch.tasks import task_of

DEVICES = 4
BASE = PlanningOptions(cluster="h100-8")
NAMES = {part.name for part in fields(PlanningOptions)}

# Another value of each option.
OTHER: dict[str, Any] = {
    "cluster": "a100-80gb-8",
    "optimizer": "sgd",
    "inputs": "sharded",
    "space": "full",
    "max_configs": 7,
    "split_spatial": True,
    "recompute": True,
    "max_micro_batches": 2,
    "max_stages": 2,
    "overlap": False,
    "reduce_dtype": "compute",
    "compiled": True,
    "memory": "sums",
    "measure": False,
    "measuring": MeasureOptions(budget_s=7.0),
    "validate": 3,
    "pin": {"weight": "whole"},
    "forbid": {"weight": "whole"},
    "search": SearchSettings(epsilon=0.25),
}
# Options that say nothing of the strategy space: they are of the search over it, of which of
# its strategies is picked, or of how costs are measured.
NOT_OF_SETTINGS = {
    *("max_micro_batches", "max_stages", "memory", "measure", "measuring", "validate", "search")
}
# Flags of the command line, and options without one: they are of jobs, and of experiments.
FLAGS: dict[str, list[str]] = {
    "cluster": ["--cluster", "a100-80gb-8"],
    "optimizer": ["--optimizer", "sgd"],
    "inputs": ["--inputs", "sharded"],
    "space": ["--space", "full"],
    "split_spatial": ["--split-spatial"],
    "recompute": ["--recompute"],
    "max_micro_batches": ["--max-micro-batches", "2"],
    "max_stages": ["--max-stages", "2"],
    "overlap": ["--no-overlap"],
    "reduce_dtype": ["--reduce-dtype", "compute"],
    "compiled": ["--compiled"],
    "memory": ["--memory", "sums"],
    "pin": ["--pin", "weight=whole"],
    "forbid": ["--forbid", "weight=whole"],
    "search": ["--epsilon", "0.25"],
}
NO_FLAG = {"max_configs", "measure", "measuring", "validate"}


def task(planning: PlanningOptions) -> PlanningTask:
    with torch.device("meta"):
        model, x = nn.Linear(16, 16), torch.zeros(8, 16)
    return task_of(Example(model, (x,), loss_fn=torch.sum), planning)


def settings(planning: PlanningOptions) -> Settings:
    return task(planning).settings(DEVICES)


def key(planning: PlanningOptions) -> str:
    """Of a kept plan, as ``find_strategy`` asks for it."""
    machine = key_of_job(torch.device("cpu"), [DEVICES])
    asked = {"planning": plain_options(planning)}
    return json.dumps(conditions_of(task(planning), DEVICES, machine, asked), sort_keys=True)


def from_command_line(*flags: str) -> PlanningOptions:
    parser = argparse.ArgumentParser()
    add_model(parser)
    add_memory_limit(parser)
    return planning_of(parser.parse_args(["model.py:make", *flags]))


def test_every_option_is_named_here() -> None:
    assert set(OTHER) == NAMES
    assert FLAGS.keys() | NO_FLAG == NAMES and not FLAGS.keys() & NO_FLAG
    assert NOT_OF_SETTINGS < NAMES


@pytest.mark.parametrize("name", sorted(OTHER))
def test_an_option_reaches_the_settings_and_their_json(name: str) -> None:
    base, other = settings(BASE), settings(replace(BASE, **{name: OTHER[name]}))
    assert (other == base) == (name in NOT_OF_SETTINGS)
    assert (json.dumps(asdict(other)) == json.dumps(asdict(base))) == (name in NOT_OF_SETTINGS)


def test_one_record_is_in_all_that_options_go_through() -> None:
    shared = {part.name for part in fields(SpaceOptions)}
    for kind in (PlanningOptions, PlanningTask, Settings):
        own = shared & kind.__annotations__.keys()
        assert issubclass(kind, SpaceOptions) and not own, f"{kind.__name__} has {own} twice"
    assert shared == SpaceKeywords.__annotations__.keys()
    assert shared <= NAMES - NOT_OF_SETTINGS


def test_settings_keep_the_options_that_are_as_the_user_gave_them() -> None:
    other = settings(
        replace(BASE, **{part.name: OTHER[part.name] for part in fields(SpaceOptions)})
    )
    for part in fields(SpaceOptions):
        assert getattr(other, part.name) == OTHER[part.name] != getattr(settings(BASE), part.name)


def test_an_option_that_the_core_does_not_take_fails() -> None:
    """So a field that is new in Python alone is not lost on its way."""
    plain = handed_to_core(SpaceOptions())
    rest = {
        "optimizer_state_bytes": {"float32": 8.0},
        "sharded_inputs": False,
        "max_configs": 200,
    }
    _C.SpaceOptions(**plain, **rest)
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        _C.SpaceOptions(**plain, **rest, split_time=True)


@pytest.mark.parametrize("name", sorted(part.name for part in fields(SpaceOptions)))
def test_an_option_reaches_the_core(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    core = _C.SpaceOptions

    def watched(**given: Any) -> _C.SpaceOptions:
        made.append(given)
        return core(**given)

    monkeypatch.setattr(_C, "SpaceOptions", watched)
    for planning in (BASE, replace(BASE, **{name: OTHER[name]})):
        planned = task(planning)
        make_space(planned.captured, planned.settings(DEVICES))
    base, other = made
    assert base[name] == getattr(BASE, name) and other == base | {name: OTHER[name]}


@pytest.mark.parametrize("name", sorted(OTHER))
def test_a_plan_is_not_kept_for_another_value_of_an_option(name: str) -> None:
    assert key(BASE) == key(replace(BASE))
    assert key(replace(BASE, **{name: OTHER[name]})) != key(BASE)


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_a_flag_sets_its_option_alone(name: str) -> None:
    base, other = from_command_line(), from_command_line(*FLAGS[name])
    changed = {part for part in NAMES if getattr(base, part) != getattr(other, part)}
    assert changed == {name}


def test_the_command_line_has_the_defaults_of_the_options() -> None:
    found, default = from_command_line(), PlanningOptions()
    same = NAMES - {"cluster", "optimizer", "pin", "forbid"}  # in other words there
    assert {n: getattr(found, n) for n in same} == {n: getattr(default, n) for n in same}
    assert settings(replace(found, cluster="h100-8")) == settings(BASE)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_option_is_described(name: str) -> None:
    assert f"\n        {name}: " in (PlanningOptions.__doc__ or "")
