"""Starts processes that have imported what takes seconds.

    python -m tests.distributed.faults.server

Reads a line of JSON for each, ``{"id", "output", "environment", "job"}``, and writes ``ID began
PID`` and ``ID ended STATUS``. A process leaves this program's loop and ends as programs do: with
its own traceback, its threads and what is run at exit. Its output goes to a named pipe, which has
no size that a full disk could limit.
"""

from __future__ import annotations

import json
import os
import select
import signal
from typing import Any

import torch
import torch.distributed.checkpoint.state_dict
from torch import nn

from tensoropt_torch.frontend import capture
from tests.distributed.faults import job

LIFE_S = 120  # of a process, whatever happens


def serve() -> dict[str, Any] | None:
    """In the server until its input ends: None. In a process: its job."""
    running: dict[int, str] = {}
    buffer = b""
    print("ready", flush=True)
    while True:
        if select.select([0], [], [], 0.02)[0]:
            data = os.read(0, 65536)
            if not data:
                return None
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                given = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    return _become(given)
                running[pid] = given["id"]
                print(given["id"], "began", pid, flush=True)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            print(running.pop(pid), "ended", os.waitstatus_to_exitcode(status), flush=True)


def _become(given: dict[str, Any]) -> dict[str, Any]:
    os.setsid()
    signal.alarm(LIFE_S)
    output = os.open(given["output"], os.O_WRONLY)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)
    os.environ.update(given["environment"])
    return dict(given["job"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    capture(nn.Linear(2, 2), (torch.ones(2, 2),), loss_fn=lambda y: y.sum())
    given_job = serve()
    if given_job is not None:
        job.main(given_job)
