"""Files of plans: what is saved is loaded, and what else a file says is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Plan, TensorOptError


@pytest.fixture(scope="module")
def plan() -> Plan:
    with torch.device("meta"):
        model, args = nn.Linear(16, 16), (torch.zeros(8, 16),)
    return tensoropt_torch.find_strategy(model, args, cluster="h100-8", num_devices=4)


def test_plans_with_measured_costs_survive(plan: Plan) -> None:
    work = ("float32", 1.0, 1.0, 1.0, 1.0, True, False)
    settings = replace(
        plan.settings,
        measured=(("all_reduce", 1, ((1024.0, 1e-3), (2048.0, 2e-3))),),
        operators=(("key", "family", work, 1e-3, 1e-3),),
    )
    guarantee = replace(plan.guarantee, exact=False, epsilon=math.inf, heuristics=(0.0, 0.5))
    changed = replace(plan, settings=settings, guarantee=guarantee, peak_bytes=1 << 40)
    loaded = Plan.from_json(changed.to_json())
    assert loaded == changed
    assert loaded.hash == changed.hash


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (
            ("parts", 0, "choices", "configs", 0, 1),
            1,
            "parts[0].choices.configs[0][1] = 1 is not allowed",
        ),
        (("parts", 0, "choices", "edges"), 5, "parts[0].choices.edges = 5 is not allowed"),
        (("parts", 0, "time_s"), None, "parts[0].time_s = None is not allowed"),
        (("parts",), [], "parts = [] is not allowed; it must be a list of one part, all that"),
        (("parts",), 5, "parts = 5 is not allowed; it must be a list of one part, all that"),
        (("settings", "inputs"), "all", "settings.inputs = 'all' is not allowed; it must be one"),
        (("settings", "space_"), 1, "'settings.space_' is unknown; did you mean 'space'?"),
        (("settings", "mesh_axes", 0), [2], "key 'settings.mesh_axes[0][1]' is missing"),
        (("settings",), [], "settings = [] is not allowed; it must be a table [settings]"),
        (("guarantee", "epsilon"), "0%", "guarantee.epsilon = '0%' is not allowed"),
        (("parts", 0, "fingerprint"), ["x" * 500], "fingerprint = ['xxx"),
        (("captured",), {}, "captured = {} is not allowed"),
        (("parts", 0, "time_s"), -1, "time_s = -1 is not allowed; it must be a finite number, 0"),
        (
            ("parts", 0, "memory_bytes"),
            math.nan,
            "memory_bytes = nan is not allowed; it must be a finite",
        ),
        (("frontier", 0, 1), math.inf, "frontier[0][1] = inf is not allowed; it must be a fin"),
        (("peak_bytes",), -4, "peak_bytes = -4 is not allowed; it must be a whole number, 0"),
        (("settings", "mesh_axes", 0, 0), 0, "settings.mesh_axes[0][0] = 0 is not allowed"),
        (("settings", "micro_batches"), 0, "settings.micro_batches = 0 is not allowed"),
        (("guarantee", "epsilon"), -1.0, "guarantee.epsilon = -1.0 is not allowed"),
        (("hashes",), 5, "hashes = 5 is not allowed"),
    ],
)
def test_what_is_wrong_with_a_plan_is_named(
    plan: Plan, tmp_path: Path, path: tuple[Any, ...], value: Any, problem: str
) -> None:
    record = json.loads(plan.to_json())
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(record))
    with pytest.raises(TensorOptError) as error:
        Plan.load(file)
    text = str(error.value)
    assert text.startswith(f"plan file '{file}': ")
    assert problem in text
    assert len(text.replace(str(file), "")) < 400


def test_several_parts_are_refused(plan: Plan) -> None:
    record = json.loads(plan.to_json())
    record["parts"] *= 2
    with pytest.raises(TensorOptError, match=r"parts = .* is not allowed; it must be a list of on"):
        Plan.from_json(json.dumps(record))


def test_missing_fields_are_named(plan: Plan) -> None:
    record = json.loads(plan.to_json())
    del record["parts"][0]["choices"], record["settings"]["cluster"]
    with pytest.raises(TensorOptError) as error:
        Plan.from_json(json.dumps(record))
    assert "key 'parts[0].choices' is missing" in str(error.value)
    assert "key 'settings.cluster' is missing" in str(error.value)


@pytest.mark.parametrize("text", ["", "5", "[]", "{}", "plan", '{"format_version": 3'])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(TensorOptError, match=r"plan.json' is not a plan: .*; write one with"):
        Plan.load(file)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(TensorOptError, match=r"missing.json' cannot be read: .*No such file"):
        Plan.load(tmp_path / "missing.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(TensorOptError, match=r"binary.json' cannot be read"):
        Plan.load(tmp_path / "binary.json")


def test_other_versions_are_refused(plan: Plan) -> None:
    record = json.loads(plan.to_json()) | {"format_version": 99}
    with pytest.raises(TensorOptError, match="has format version 99, this version of tensoropt"):
        Plan.from_json(json.dumps(record))


CHANGES: dict[str, Callable[[Any], object]] = {
    "parts[0].choices.configs": lambda plan: plan["parts"][0]["choices"]["configs"].reverse(),
    "parts[0].time_s": lambda plan: plan["parts"][0].update(time_s=plan["parts"][0]["time_s"] / 2),
    "parts[0].fingerprint": lambda plan: plan["parts"][0].update(fingerprint="0" * 16),
    "settings.recompute": lambda plan: plan["settings"].update(recompute=True),
    "settings.overlap, variants": lambda plan: [
        plan["settings"].pop("overlap"),
        plan.pop("variants"),
    ],
}


@pytest.mark.parametrize("names", CHANGES)
def test_what_was_changed_in_a_file_is_named(plan: Plan, tmp_path: Path, names: str) -> None:
    record = json.loads(plan.to_json())
    CHANGES[names](record)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(record))
    with pytest.raises(TensorOptError) as error:
        Plan.load(file)
    expected = f"plan file '{file}' was changed by hand since it was written: {names}; what a plan"
    assert str(error.value).startswith(expected)


def test_a_file_may_be_written_otherwise(plan: Plan) -> None:
    record = json.loads(plan.to_json())
    (part,) = record["parts"]
    assert part["memory_bytes"] == int(part["memory_bytes"])
    part["memory_bytes"] = int(part["memory_bytes"])  # as jq does
    turned = dict(reversed(record.items()))
    assert Plan.from_json(json.dumps(turned, indent=2)) == plan


def test_files_of_earlier_versions_have_no_hashes(plan: Plan) -> None:
    record = json.loads(plan.to_json())
    del record["hashes"]
    assert Plan.from_json(json.dumps(record)) == plan
