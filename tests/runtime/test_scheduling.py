"""Real-time priority of Gloo's threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.scheduling import NETWORK_THREADS, OFF, may_prioritise_network
from tests.distributed.harness import run_ranks

HERE = "tests.runtime.test_scheduling"


def policies(setting: str) -> tuple[list[int], list[int]]:
    """Of Gloo's threads, and of all others."""
    os.environ[OFF] = setting
    groups = AxisGroups((2, 2))
    groups.create([0b01, 0b10, 0b11])
    network, others = [], []
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
        policy = os.sched_getscheduler(int(task.name))
        (network if name in NETWORK_THREADS else others).append(policy)
    groups.close()
    return network, others


@pytest.mark.parametrize("setting", ["1", "0"])
def test_only_threads_of_the_network_are_prioritised(setting: str) -> None:
    expected = os.SCHED_FIFO if setting == "1" and may_prioritise_network() else os.SCHED_OTHER
    for network, others in run_ranks(4, f"{HERE}:policies", setting):
        assert len(network) >= 3  # of three groups
        assert set(network) == {expected}
        assert set(others) == {os.SCHED_OTHER}


def test_the_question_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getscheduler(0), threading.active_count()
    may_prioritise_network()
    assert (os.sched_getscheduler(0), threading.active_count()) == before
    monkeypatch.setenv(OFF, "0")
    assert not may_prioritise_network()


def test_without_permission_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert not may_prioritise_network()
