"""Whether a process is there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import asdict, replace

import pytest

from tensoropt_torch.runtime import processes
from tensoropt_torch.runtime.processes import Process, this_process


def process_of(pid: int) -> Process:
    return replace(this_process(), pid=pid, begun=processes._status(pid)[1])


def wait_for(process: Process, state: str) -> None:
    end_s = time.monotonic() + 10
    while process.state() != state:
        assert time.monotonic() < end_s, process.state()
        time.sleep(0.01)


def test_a_process_runs_is_stopped_and_is_gone() -> None:
    child = subprocess.Popen(["sleep", "100"])
    found = process_of(child.pid)
    assert found.state() == "runs"
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(found, "stopped")
    child.kill()
    wait_for(found, "gone")  # before anybody has asked how it ended
    child.wait()
    assert found.state() == "gone"


def test_another_process_of_the_same_number_is_another_one() -> None:
    own = this_process()
    assert own.state() == "runs"
    assert replace(own, begun="1").state() == "gone"
    assert Process(**asdict(own)) == own


def test_of_other_machines_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    own = this_process()
    assert replace(own, machine="another").state() == "unknown"
    monkeypatch.setattr(processes, "_machine", lambda: "")
    assert this_process().state() == "unknown"
