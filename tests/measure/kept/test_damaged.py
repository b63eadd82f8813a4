"""Every kind of kept file, damaged in every way: the message names the file, be it an error or a
line of the log."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tensoropt_torch import TensorOptError
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.hardware import resumable
from tensoropt_torch.measure.kept.comparisons import KeptComparison
from tensoropt_torch.measure.kept.conditioned import ConditionedFile
from tensoropt_torch.measure.kept.files import read_or
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.kept.operator_times import OpStore, known_operators
from tensoropt_torch.measure.kept.plans import KeptPlans
from tensoropt_torch.measure.kept.sealed import SealedFormat
from tensoropt_torch.measure.kept.strategies import KeptStrategy, StrategyStore
from tensoropt_torch.measure.runs import race, random_strategies
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.measure.kept.test_files import SAMPLE
from tests.measure.kept.test_hardware_profile import KEY
from tests.measure.logged import logged_warnings

Load = Callable[[], Any]


class Net(nn.Module):
    """Whose code is in a file."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.linear(x).square().mean()


def net() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Net(), (torch.zeros(4, 8),)


def of_hardware() -> Load:
    path = Path("profile.json").absolute()
    HardwareProfile(KEY, load_cluster("cpu"), ((2, 0),)).save(path)
    return lambda: HardwareProfile.load(path)


def of_some_seconds() -> Load:
    path = Path("quick.json").absolute()
    profile = HardwareProfile(KEY, load_cluster("cpu"), ((2, 0),))
    profile.save(path)
    return lambda: read_or(None, partial(resumable, path, profile, fresh=False), "again")


def of_operators() -> Load:
    OpStore(KEY).add([SAMPLE])
    return lambda: known_operators(KEY)


def of_plans() -> Load:
    task = PlanningTask(capture(*net()), load_cluster("cpu"))
    kept = KeptPlans(task, 1, torch.device("cpu"), {})
    assert kept.keep(find_frontier(task, 1).fastest.plan, ())
    return kept.load


def of_comparisons() -> Load:
    model, args = net()
    kept = KeptComparison(model, capture(model, args))
    kept.keep()
    return kept.load


def of_strategies() -> Load:
    store = StrategyStore({"model": 1})
    store.save([])
    return store.load


def of_steps() -> Load:
    file = ConditionedFile("steps", race.FILE, {"model": 1})
    file.write({"runs": {}})
    return lambda: read_or({}, partial(race._load, file), "again")


def test_strategies_of_another_space_are_those_of_a_named_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path))
    task = PlanningTask(capture(*net()), load_cluster("cpu"))
    space: Any = SimpleNamespace(core=make_space(task.captured, task.settings(2)))
    store = StrategyStore({"model": 1})
    store.save([KeptStrategy(0, 1.0, ("x",), (), 1.0, 0.0, 1.0)])
    with pytest.raises(TensorOptError, match=f"'{store.path}' is damaged"):
        random_strategies._load(store, lambda seed: space)


KINDS = [
    *(of_hardware, of_some_seconds, of_operators, of_plans, of_comparisons),
    *(of_strategies, of_steps),
]


def sealed(record: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """A file of the same kind with another content, and the checksum of that."""
    kind = SealedFormat(record["format"].removeprefix("tensoropt "), record["version"], "again")
    return kind.seal(content)


def harms(text: str) -> dict[str, bytes]:
    record = json.loads(text)
    content = record["content"]
    conditions = {key: content[key] for key in ("conditions",) if key in content}
    return {
        "cut off": text[: len(text) // 2].encode(),
        "empty": b"",
        "no text": b"\xff\xfe\x00",
        "another file": b'{"a": 1}',
        "another version": json.dumps({**record, "version": 99}).encode(),
        "changed": json.dumps({**record, "content": {**content, "a": 1}}).encode(),
        "a key too many": sealed(record, {**content, "strange": 1}).encode(),
        "nothing in it": sealed(record, conditions).encode(),
    }


def tried(load: Load) -> tuple[Any, list[str]]:
    """What is found, and what is said of a file that does not work: in the log, or as an error."""
    with logged_warnings() as messages:
        try:
            return load(), messages
        except TensorOptError as error:
            return None, [*messages, str(error)]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_damaged_file_is_named(
    make: Callable[[], Load], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    load = make()
    (path,) = tmp_path.rglob("*.json")
    with logged_warnings() as messages:
        whole = load()
    assert messages == [] and whole is not False and whole is not None
    for name, harm in harms(path.read_text()).items():
        path.write_bytes(harm)
        found, (message,) = tried(load)
        assert not found, name
        assert f"'{path}'" in message, f"{name}: {message}"


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_files_of_other_users_are_not_taken(
    make: Callable[[], Load], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    load = make()
    (path,) = tmp_path.rglob("*.json")
    assert path.stat().st_mode & 0o077 == 0
    user = os.geteuid()
    if user == 0:
        os.chown(path, 4321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    found, (message,) = tried(load)
    assert not found
    assert f"'{path}' belongs to user" in message
    assert "files of others are not taken" in message


def test_files_that_are_given_may_be_of_any_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    load = of_hardware()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert load().machine == KEY
