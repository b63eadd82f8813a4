"""How threads are scheduled: as they were, unless the environment asks for more."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import tensoropt_torch
from tensoropt_torch import TensorOptError
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.host.scheduling import (
    ASKED,
    NETWORK_THREADS,
    NICE,
    favours_network,
)
from tests.distributed.harness import run_ranks
from tests.distributed.models import make

HERE = "tests.runtime.test_scheduling"

Scheduling = tuple[int, int]  # policy and nice value


def is_permitted() -> bool:
    """Asked in another way than by the package."""
    child = os.fork()
    if child == 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        except PermissionError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


permitted_only = pytest.mark.skipif(not is_permitted(), reason="nice values are not permitted")


def schedulings() -> tuple[list[Scheduling], list[Scheduling]]:
    """Of Gloo's threads, and of all others."""
    network, others = [], []
    for task in Path("/proc/self/task").iterdir():
        thread = int(task.name)
        found = (os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread))
        name = (task / "comm").read_text().strip()
        (network if name in NETWORK_THREADS else others).append(found)
    return network, others


def after_groups(setting: str | None) -> tuple[list[Scheduling], list[Scheduling]]:
    """With groups made, and a model that has taken a step."""
    if setting is not None:
        os.environ[ASKED] = setting
    groups = AxisGroups((2, 2))
    groups.create([0b01, 0b10, 0b11])
    case = make("mlp", torch.float32)
    frontier = tensoropt_torch.find_frontier(case.model, case.args, num_devices=4, **case.keywords)
    module = tensoropt_torch.parallelize(case.model, frontier.fastest.plan)
    module(*case.args, *case.targets).backward()
    found = schedulings()
    groups.close()
    return found


@pytest.mark.parametrize("setting", [None, "0"])
def test_by_default_nothing_is_scheduled_in_another_way(setting: str | None) -> None:
    ordinary = (os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))
    for network, others in run_ranks(4, f"{HERE}:after_groups", setting):
        assert len(network) >= 3  # of three groups
        assert {*network, *others} == {ordinary}


@permitted_only
def test_where_it_is_asked_threads_of_the_network_alone_are_favoured() -> None:
    ordinary = (os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))
    for network, others in run_ranks(4, f"{HERE}:after_groups", "1"):
        assert len(network) >= 3
        assert set(network) == {(os.SCHED_OTHER, NICE)}
        assert set(others) == {ordinary}


def refusal(setting: str) -> str:
    """Where rank 1 is not permitted what its environment asks for."""
    os.environ[ASKED] = setting
    if dist.get_rank() == 1:
        os.setpriority = refuse
    with pytest.raises(TensorOptError) as caught:
        AxisGroups((2,)).create([0b1])
    return str(caught.value)


def refuse(*_: object) -> None:
    raise PermissionError


@permitted_only
def test_without_permission_it_is_an_error_on_all_ranks() -> None:
    for message in run_ranks(2, f"{HERE}:refusal", "1"):
        assert f"{ASKED}=1 needs the permission for a nice value of {NICE}" in message


def test_other_values_are_an_error() -> None:
    for message in run_ranks(2, f"{HERE}:refusal", "yes"):
        assert f"{ASKED} is 'yes'; set it to 1" in message


def test_on_other_devices_it_has_no_effect_which_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not favours_network("cuda")
    monkeypatch.setenv(ASKED, "1")
    with pytest.raises(TensorOptError, match="no effect on device 'cuda'"):
        favours_network("cuda")


@permitted_only
def test_the_question_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKED, "1")
    before = os.getpriority(os.PRIO_PROCESS, 0), threading.active_count()
    assert favours_network("cpu")
    assert (os.getpriority(os.PRIO_PROCESS, 0), threading.active_count()) == before
