"""What a job has planned is there for the next one."""

from __future__ import annotations

import json
import logging
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from tensoropt_torch import (
    MeasureOptions,
    OptimizerModel,
    Plan,
    PlanningOptions,
    SearchSettings,
    TensorOptError,
    ValidationOptions,
    measure,
    progress,
)
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.logs import LIBRARY
from tensoropt_torch.measure import plain_options
from tensoropt_torch.measure.kept import plans as kept_plans
from tensoropt_torch.measure.kept.files import home
from tensoropt_torch.measure.kept.operator_times import OpStore, known_operators
from tensoropt_torch.measure.kept.plans import conditions_of
from tensoropt_torch.measure.machine.key import MachineKey, key_of_job
from tensoropt_torch.measure.runs import race as races
from tensoropt_torch.measure.runs.training import StepTimes, Training
from tensoropt_torch.plan import constraints_of
from tensoropt_torch.planner import finalists as likely
from tensoropt_torch.planner.task import PlanningTask
from tests.distributed.harness import RankError, run_ranks

HERE = "tests.measure.kept.test_plans"
QUICK = MeasureOptions(max_bytes=2048, budget_s=30.0, random_strategies=1, rounds=1)
BATCH = (torch.linspace(-1, 1, 64 * 16).reshape(64, 16),)
KEPT = "so that nothing is searched or run"


class Model(nn.Module):
    """With a literal in its graph."""

    def __init__(self, width: int = 32, scale: float = 2.0, name: str = "out") -> None:
        super().__init__()
        self.inner = nn.Linear(16, width)
        self.add_module(name, nn.Linear(width, 16))
        self.name, self.scale = name, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.get_submodule(self.name)(self.inner(x) * self.scale)
        return output.square().mean()


@dataclass
class Heard:
    """What this process has logged and run since it listens."""

    messages: list[str]
    runs: int = 0

    def kept(self) -> bool:
        """Whether a kept plan was taken since the last time that this was asked."""
        found = any(KEPT in message for message in self.messages)
        self.messages.clear()
        return found


def listen() -> Heard:
    heard = Heard([])

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.messages.append(record.getMessage())

    def times(*_: Any, **__: Any) -> StepTimes:
        heard.runs += 1
        return StepTimes(1.0, 0.0, 0.0)

    library = logging.getLogger(LIBRARY)
    library.addHandler(Listener())
    library.setLevel(logging.INFO)
    Training.times = times  # type: ignore[assignment]
    return heard


def find(model: nn.Module | None = None, batch: Any = BATCH, **keywords: Any) -> Plan:
    likely.NEAR = math.inf  # there are others to be run, whatever this machine is busy with
    torch.manual_seed(0)
    keywords.setdefault("measuring", QUICK)
    keywords.setdefault("inputs", "sharded")
    return tensoropt_torch.find_strategy(model or Model(), batch, **keywords)


# --- Hits ------------------------------------------------------------------------


@dataclass
class Twice:
    plans: list[Plan]
    texts: list[str]
    runs: list[int]
    messages: list[str]
    searched: list[bool]
    loss: float


def twice(homes: list[str]) -> Twice:
    os.environ["TENSOROPT_HOME"] = homes[dist.get_rank()]
    heard = listen()
    plans, runs, searched, messages = [], [], [], []
    for _ in range(2):
        plans.append(find())
        runs.append(heard.runs)
        searched.append(any("searching the strategies" in text for text in heard.messages))
        messages += heard.messages
        heard.messages.clear()
    parallel = tensoropt_torch.parallelize(Model(), plans[1])
    loss = float(parallel(BATCH[0].chunk(2)[dist.get_rank()]).detach())
    texts = [plan.to_json() for plan in plans]
    return Twice([replace(p, captured=None) for p in plans], texts, runs, messages, searched, loss)


def test_the_next_job_takes_the_very_plan(tmp_path: Path) -> None:
    """The folder of rank 0 decides; that of the other rank stays empty."""
    homes = [str(tmp_path / "first"), str(tmp_path / "second")]
    mine, other = run_ranks(2, f"{HERE}:twice", homes)
    first, again = mine.plans
    assert first == again and mine.texts[0] == mine.texts[1]
    for part in fields(Plan):
        assert getattr(first, part.name) == getattr(again, part.name)
    assert repr(first) == repr(again) and first.hash == again.hash
    assert first._repr_html_() == again._repr_html_()
    assert first.measured_s == 1.0 and first.settings.operators and first.frontier
    assert (other.plans, other.loss) == (mine.plans, mine.loss)
    assert mine.runs[0] > 0 and mine.runs[0] == mine.runs[1] == other.runs[1]
    assert mine.searched == [True, False]
    (path,) = Path(homes[0]).glob("plans/*.json")
    assert not list(Path(homes[1]).glob("plans/*"))
    (line,) = [message for message in mine.messages if KEPT in message]
    assert str(path) in line and " s ago" in line and "fresh=True" in line
    assert other.messages == []


def test_what_takes_time_is_told(tmp_path: Path) -> None:
    mine, _ = run_ranks(2, f"{HERE}:twice", [str(tmp_path)] * 2)
    told = [message for message in mine.messages if message.startswith("planned in ")]
    parts = ("capture", "device and collectives", "kept plan", "operators", "search", "race")
    assert len(told) == 2
    assert all(part in told[0] for part in parts), told
    assert [part for part in parts if part in told[1]] == list(parts[:3])
    assert any(f"within {QUICK.budget_s:g} s" in message for message in mine.messages)


def without_race(home_of: str) -> list[tuple[bool, float | None]]:
    os.environ["TENSOROPT_HOME"] = home_of
    heard = listen()
    found = []
    unmeasured = partial(find, measure=False, memory_limit=1e9)
    one = partial(find, measuring=replace(QUICK, finalists=1))
    fewest = partial(find, option="mini_parallelism")
    on_meta = partial(find, Model().to("meta"), (BATCH[0].to("meta"),))
    for ask in (unmeasured, one, fewest, on_meta):
        first, again = ask(), ask()
        assert first == again
        found.append((heard.kept(), again.measured_s))
    return found


def test_plans_that_are_not_run_are_kept_too(tmp_path: Path) -> None:
    mine, _ = run_ranks(2, f"{HERE}:without_race", str(tmp_path))
    assert mine == [(True, None)] * 4


def validated(home_of: str) -> list[bool]:
    os.environ["TENSOROPT_HOME"] = home_of
    heard = listen()
    Training.peak_bytes = lambda *_: 1 << 20  # type: ignore[method-assign, assignment]
    options = ValidationOptions(2, steps=2, passes=1)
    plans = [find(validate=options) for _ in range(2)]
    kept = [heard.kept()]
    for fresh in (True, False):
        find(validate=replace(options, fresh=fresh))
        kept.append(heard.kept())
    sgd = replace(options, optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.1))
    for _ in range(2):
        find(validate=sgd)
    kept.append(heard.kept())
    assert plans[0] == plans[1]
    return kept


def test_validated_plans_are_kept_unless_the_optimizer_is_the_users(tmp_path: Path) -> None:
    mine, _ = run_ranks(2, f"{HERE}:validated", str(tmp_path))
    assert mine == [True, False, True, False]


# --- Misses ----------------------------------------------------------------------


def asked_otherwise(home_of: str) -> tuple[dict[str, bool], bool]:
    os.environ["TENSOROPT_HOME"] = home_of
    heard = listen()
    find()
    heard.kept()
    changes: dict[str, Callable[[], Plan]] = {
        "width": lambda: find(Model(width=64)),
        "literal": lambda: find(Model(scale=3.0)),
        "name of a parameter": lambda: find(Model(name="last")),
        "shape": lambda: find(batch=(BATCH[0][:32],)),
        "dtype": lambda: find(Model().double(), batch=(BATCH[0].double(),)),
        "order in memory": lambda: find(batch=(BATCH[0].t().contiguous().t(),)),
        "option": lambda: find(option="mini_parallelism"),
        "memory_limit": lambda: find(memory_limit=1e9),
        "num_devices": lambda: find(num_devices=1),
        "cluster": lambda: find(cluster=replace(load_cluster("cpu"), name="other")),
        "measuring": lambda: find(measuring=replace(QUICK, random_strategies=2)),
        "fresh": lambda: find(measuring=replace(QUICK, fresh=True)),
        "search": lambda: find(search=SearchSettings(epsilon=0.1)),
    }
    kept = {}
    for name, ask in changes.items():
        ask()
        kept[name] = heard.kept()
    find()
    return kept, heard.kept()


def test_each_change_is_planned_anew(tmp_path: Path) -> None:
    mine, other = run_ranks(2, f"{HERE}:asked_otherwise", str(tmp_path), 240)
    kept, unchanged = mine
    assert not any(kept.values()), kept
    assert unchanged
    assert not any(other[0].values()) and not other[1]  # rank 0 speaks


def other_costs(home_of: str) -> dict[str, bool]:
    os.environ["TENSOROPT_HOME"] = home_of
    heard = listen()
    kept = {}
    machine = key_of_job(torch.device("cpu"), [2])

    def ask(name: str, change: Callable[[], None]) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            change()
        dist.barrier()
        plan = find()
        kept[name] = heard.kept()
        assert plan.settings.operators

    def store(changes: Callable[[OpStore], None]) -> None:
        changes(OpStore(machine))

    def measured_again(opened: OpStore) -> None:
        opened.add([replace(s, forward_s=2 * s.forward_s) for s in opened.load().values()])

    def another(opened: OpStore) -> None:
        sample = next(iter(opened.load().values()))
        opened.add([replace(sample, key="another")])

    def forget(folder: str) -> None:
        for file in (home() / folder).iterdir():
            file.unlink()

    ask("nothing", lambda: None)
    ask("the same", lambda: None)
    ask("an operator of another model", partial(store, another))
    ask("operators measured again", partial(store, measured_again))
    ask("no operators", partial(forget, "operators"))
    ask("no collectives", partial(forget, "quick"))
    ask("the same again", lambda: None)
    assert dist.get_rank() or "another" not in known_operators(machine)
    return kept


def test_a_plan_of_other_measurements_is_not_taken(tmp_path: Path) -> None:
    mine, _ = run_ranks(2, f"{HERE}:other_costs", str(tmp_path), 240)
    assert [name for name, kept in mine.items() if kept] == [
        "the same",
        "an operator of another model",
        "the same again",
    ]


def task_of(model: nn.Module, **changes: Any) -> PlanningTask:
    return PlanningTask(capture(model, BATCH), load_cluster("cpu"), **changes)


MACHINE = MachineKey("a CPU", "cpu", 2, 1, 2, 1, "gloo", "2.13.0", (2,))


def key_of(task: PlanningTask, machine: MachineKey = MACHINE, **asked: Any) -> str:
    return json.dumps(conditions_of(task, 2, machine, asked))


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "sgd"},
        {"optimizer": OptimizerModel("adamw", state_dtype="bfloat16")},
        {"inputs": "sharded"},
        {"space": "full"},
        {"max_configs": 10},
        {"split_spatial": True},
        {"measured": (("all_reduce", 1, ((1024.0, 1e-3),)),), "measured_on": 2},
        {"operators": (("k", "f", ("float32", 1.0, 1.0, 1.0, 1.0, True, False), 1.0, 1.0),)},
        {"memory_fraction": 0.5},
        {"overlap": True},
        {"reduce_dtype": "compute"},
        {"constraints": constraints_of({"*.weight": "S0"}, None)},
        {"search": SearchSettings(heuristics=("least_time",))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_key_tells_tasks_apart(change: dict[str, Any]) -> None:
    changed = {"measured_on": 2, **change}
    assert key_of(task_of(Model(), measured_on=2)) != key_of(task_of(Model(), **changed))


@pytest.mark.parametrize("name", [part.name for part in fields(MachineKey)])
def test_the_key_tells_machines_apart(name: str) -> None:
    value = getattr(MACHINE, name)
    changed: Any = not value if isinstance(value, bool) else value * 2
    task = task_of(Model())
    assert key_of(task) == key_of(task_of(Model()))
    assert key_of(task) != key_of(task, replace(MACHINE, **{name: changed}))


def test_the_key_tells_versions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(Model())
    keys = {key_of(task)}
    monkeypatch.setattr(kept_plans, "FORMAT_VERSION", 0)
    keys.add(key_of(task))
    monkeypatch.setattr(kept_plans, "digest_of_package", lambda: "another build")
    keys.add(key_of(task))
    assert len(keys) == 3


def test_all_options_are_in_the_key() -> None:
    """Those that are added later as well. Cluster and constraints are those of the task."""
    planning = PlanningOptions(
        inputs={"mask": "replicated"},
        optimizer=OptimizerModel("sgd"),
        validate=ValidationOptions(),
    )
    plain = plain_options(planning)
    assert {part.name for part in fields(PlanningOptions)} - plain.keys() == {
        "cluster",
        "pin",
        "forbid",
    }
    for name, kind in (("measuring", MeasureOptions), ("validate", ValidationOptions)):
        assert {part.name for part in fields(kind)} - plain[name].keys() == {"fresh"}
    key_of(task_of(Model()), planning=plain)


# --- Files that do not work, ranks that differ ------------------------------------


def damaged(home_of: str) -> list[tuple[str, list[str], list[str]]]:
    os.environ["TENSOROPT_HOME"] = home_of
    heard = listen()
    plan = find()
    (path,) = Path(home_of).glob("plans/*.json")
    text = path.read_text()
    dist.barrier()
    found = []
    sealed = json.loads(text)
    harms: dict[str, Callable[[], Any]] = {
        "damaged": lambda: path.write_text(text[:-30]),
        "empty": lambda: path.write_text(""),
        "no text": lambda: path.write_bytes(b"\xff\xfe\x00"),
        "another version": lambda: path.write_text(json.dumps({**sealed, "version": 99})),
        "other content": lambda: path.write_text(kept_plans.FILE.seal(other_content(sealed))),
        "a folder": lambda: (path.unlink(), path.mkdir()),
    }
    for name, harm in harms.items():
        if dist.get_rank() == 0:
            harm()
        dist.barrier()
        heard.messages.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert find().strategy_hash == plan.strategy_hash
        lines = [line for line in heard.messages if "kept" in line and str(path) in line]
        found.append((name, lines, [str(w.message) for w in caught if "kept" in str(w.message)]))
    return found


def other_content(sealed: dict[str, Any]) -> dict[str, Any]:
    return {**sealed["content"], "plan": '{"format_version": 6}'}


def test_a_file_that_does_not_work_is_a_line_of_the_log(tmp_path: Path) -> None:
    mine, other = run_ranks(2, f"{HERE}:damaged", str(tmp_path), 240)
    for name, lines, warned in mine:
        assert lines and "the kept plan is not used" in lines[0], name
        assert warned == []
        # Only what cannot be replaced stays.
        assert any("the plan is not kept" in line for line in lines) == (name == "a folder")
    assert all(lines == [] and warned == [] for _, lines, warned in other)


def half_raced(home_of: str) -> list[bool]:
    os.environ["TENSOROPT_HOME"] = home_of
    heard = listen()
    race = races._race
    races._race = lambda runs, *rest: race(runs[:1], *rest)  # no time for the others
    find()
    races._race = race
    kept = []
    for _ in range(2):
        find()
        kept.append(heard.kept())
    return kept


def test_a_race_that_had_no_time_for_all_goes_on(tmp_path: Path) -> None:
    mine, _ = run_ranks(2, f"{HERE}:half_raced", str(tmp_path))
    assert mine == [False, True]


def race_budgets(home_of: str) -> list[float]:
    """Where all before it took so long."""
    os.environ["TENSOROPT_HOME"] = home_of
    given = []

    def race(plans: list[Plan], *arguments: Any, **_: Any) -> races.Race:
        given.append(arguments[-1])
        return races.Race(plans[0], complete=True)

    def end(phases: progress.Phases, name: str) -> None:
        phases.seconds[name] = float(name == "search")

    measure.race = race
    progress.Phases.end = end  # type: ignore[method-assign]
    rank = dist.get_rank()
    for spent_s in (0.0, QUICK.budget_s - 3.0 + rank, QUICK.budget_s + 8.0):
        progress.Phases.total_s = spent_s  # type: ignore[assignment, method-assign]
        find(measuring=replace(QUICK, fresh=True))
    return given


def test_the_race_gets_what_is_left_on_the_slowest_rank(tmp_path: Path) -> None:
    mine, other = run_ranks(2, f"{HERE}:race_budgets", str(tmp_path))
    # A fifth of it, and the second that the search took, are for the next race, if that is less
    # than half of it.
    assert mine == other == pytest.approx([0.8 * QUICK.finalists_s - 1.0, 2.0, 0.0])


def differently(home_of: str) -> list[str]:
    os.environ["TENSOROPT_HOME"] = home_of
    rank = dist.get_rank()
    messages = []
    for options in (
        {"option": ("mini_time", "mini_parallelism")[rank]},
        {"measure": bool(rank)},
        {"num_devices": rank + 1},
        {"measuring": replace(QUICK, fresh=bool(rank))},
        {"validate": bool(rank)},
    ):
        with pytest.raises(TensorOptError) as caught:
            find(**options)
        messages.append(str(caught.value))
    return messages


def test_ranks_that_ask_differently_are_told(tmp_path: Path) -> None:
    mine, other = run_ranks(2, f"{HERE}:differently", str(tmp_path))
    assert mine == other
    for message in mine:
        assert "the strategy that is asked for differs between ranks" in message
        assert "give the same options on every rank" in message


def other_model(home_of: str) -> None:
    """After both have kept the plan of the one."""
    os.environ["TENSOROPT_HOME"] = home_of
    find()
    find(Model(width=32 + 32 * dist.get_rank()))


def test_another_model_on_a_rank_is_an_error_not_a_kept_plan(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="model differs between ranks"):
        run_ranks(2, f"{HERE}:other_model", str(tmp_path))
