"""Plan files that earlier versions wrote are read, and mean what they meant.

    python -m tests.plan.test_older_plans

writes one by this version, for a format that has none, and beside it what its strategy does to
each value. Files that are there stay as they are: they are what users have. Whether an operator
or a reshard after it does something may change, and with it what is beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tensoropt_torch
from tensoropt_torch import Plan, TensorOptError
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.plan.files import FORMAT_VERSION
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.simulate import StepSettings, simulate_step
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.telling.details import details_of
from tests.distributed.models import CASES

OLDER = Path(__file__).parent / "older"
MODEL = "gpt"
DEVICES = 4


def captured() -> CapturedModel:
    case = CASES[MODEL]()
    return capture(case.model, case.args, **case.keywords)


def newest() -> Plan:
    """With all that a plan may choose."""
    task = PlanningTask(captured(), tensoropt_torch.load_cluster("h100-8"), recompute=True)
    settings = task.settings(DEVICES)
    space = make_space(task.captured, settings)
    for seed in range(100):
        plan = Plan.of(space, settings, task.captured, space.random_strategy(seed))
        details = details_of(plan, space).description
        if details.num_recomputed and {"before", "after"} <= details.kept.keys():
            return replace(plan, frontier=((plan.memory_bytes, plan.time_s),))
    raise AssertionError("no seed chooses everything")


def crossings(plan: Plan) -> list[dict[str, Any]]:
    """What happens to each value on its way to a consumer."""
    model = micro_batched(captured(), plan.settings.micro_batches)
    space = make_space(model, plan.settings)
    return [
        {
            "source": edge.source,
            "target": edge.target,
            "value": edge.value,
            "from": edge.layout_from,
            "to": edge.layout_to,
            "gradient_from": edge.gradient_from,
            "gradient_to": edge.gradient_to,
            "reuse": edge.saved.edge_word,
            "held": edge.held,
            "summed": edge.summed,
        }
        for edge in space.edges_of(plan.choices.strategy(space))
    ]


@pytest.fixture(params=sorted(path.stem for path in OLDER.glob("*.json")))
def older(request: pytest.FixtureRequest) -> Path:
    return OLDER / f"{request.param}.json"


def test_the_format_that_is_written_has_a_file() -> None:
    assert (OLDER / f"{FORMAT_VERSION}.json").exists()


def test_older_plans_mean_what_they_meant(older: Path) -> None:
    plan = Plan.load(older).with_model(captured())
    assert plan.captured is not None
    plan.check_model(plan.captured)
    assert crossings(plan) == json.loads(older.with_suffix(".crossings").read_text())
    space = make_space(plan.captured, plan.settings)
    strategy = plan.choices.strategy(space)
    seconds = space.compute_time(strategy) + space.network_time(strategy)
    assert seconds == pytest.approx(plan.time_s, rel=0.5), "costs may change, but not so much"


def test_older_plans_can_be_run(older: Path) -> None:
    plan = Plan.load(older)
    step = StepSettings.on(torch.device("cpu"), "adam")
    assert simulate_step(plan, captured(), step).peak_bytes > 0


def test_settings_that_an_older_plan_does_not_know_have_their_defaults(older: Path) -> None:
    record = json.loads(older.read_text())
    record.pop("hashes", None)
    plan = Plan.from_json(json.dumps(record))
    del record["settings"]["micro_batches"], record["variants"], record["peak_bytes"]
    settings = replace(plan.settings, micro_batches=1)
    expected = replace(plan, settings=settings, variants=(), peak_bytes=None)
    assert Plan.from_json(json.dumps(record)) == expected


def test_all_that_a_plan_of_format_8_says_is_read() -> None:
    text = (OLDER / "8-sealed.json").read_text()
    plan, said = Plan.from_json(text), json.loads(text)
    part = {name: said[name] for name in ("fingerprint", "memory_bytes", "time_s", "choices")}
    (of_variant,) = said["variants"]
    rest = {name: of_variant.pop(name) for name in ("gathered", "micro_batches")}
    expected = {"parts": [part], "variants": [{"parts": [of_variant], **rest}]}
    same = ("settings", "frontier", "guarantee", "peak_bytes", "measured_s")
    expected |= {name: said[name] for name in same}
    # Which it does not know.
    unknown = {"in_flight": 1, "compiled": False, "row_axes": None}
    expected["settings"] = {**said["settings"], **unknown}
    written = json.loads(plan.to_json())
    assert {name: written[name] for name in expected} == expected
    assert written.keys() == {*expected, "format_version", "hashes"}
    assert Plan.from_json(plan.to_json()) == plan
    # As the version that wrote it names the strategy.
    assert plan.strategy_hash == "58a5f6cc72e9268b"


CHANGED: dict[str, Callable[[Any], object]] = {
    "choices.configs": lambda plan: plan["choices"]["configs"][0].__setitem__(0, "fc.weight"),
    "time_s": lambda plan: plan.update(time_s=plan["time_s"] / 2),
    "variants": lambda plan: plan["variants"][0].update(gathered=False),
    "settings.overlap": lambda plan: plan["settings"].pop("overlap"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_was_changed_in_a_file_of_format_8_is_named(name: str) -> None:
    record = json.loads((OLDER / "8-sealed.json").read_text())
    CHANGED[name](record)
    with pytest.raises(TensorOptError, match=rf"since it was written: {re.escape(name)}; what"):
        Plan.from_json(json.dumps(record))


def test_a_plan_that_does_not_fit_says_what_is_missing(older: Path) -> None:
    plan = Plan.load(older)
    (name, _), *others = plan.choices.configs
    configs = ((name, "split otherwise"), *others)
    wrong = plan.with_part(choices=replace(plan.choices, configs=configs))
    step = StepSettings.on(torch.device("cpu"), "adam")
    with pytest.raises(TensorOptError, match=f"'{name}' has no config 'split otherwise'.*again"):
        simulate_step(wrong, captured(), step)


if __name__ == "__main__":
    file, plan = OLDER / f"{FORMAT_VERSION}.json", newest()
    file.write_text(plan.to_json() + "\n")
    file.with_suffix(".crossings").write_text(json.dumps(crossings(plan), indent=0) + "\n")
