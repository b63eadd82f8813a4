"""Starts a script on the processes of one machine, and again on fewer of them if one ends.

torchrun starts as many processes as before, which does not help where a device is gone. The script
sees what it sees under torchrun: the same variables, and a store at the launcher.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    Std,
    start_processes,
)
from torch.distributed.elastic.multiprocessing.api import PContext, RunProcsResult

HOST = "127.0.0.1"
POLL_S = 0.1


@dataclass(frozen=True)
class Job:
    """What is started.

    Attributes:
        command: of each process, after Python.
        least, most: numbers of processes; it begins with the most.
        max_restarts: how often it is started again.
    """

    command: Sequence[str]
    least: int
    most: int
    max_restarts: int

    def run(self) -> int:
        """0 if all processes of a start ended well, else 1."""
        count = self.most
        for restart in range(self.max_restarts + 1):
            failed = _run_once(self, count, restart)
            if failed is None:
                return 0
            fewer = max(self.least, count - 1)
            goes_on = restart < self.max_restarts
            then = f"starting again with {fewer}" if goes_on else "no restarts are left"
            _say(f"of {count} processes, {failed}; {then}")
            count = fewer
        return 1


def _run_once(job: Job, count: int, restart: int) -> str | None:
    """Which process ended first, and how; None: all ended well."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    run_id = uuid.uuid4().hex
    ranks = range(count)
    processes = start_processes(
        "elastic",
        sys.executable,
        {rank: tuple(job.command) for rank in ranks},
        {rank: _environment(job, rank, count, restart, store.port, run_id) for rank in ranks},
        DefaultLogsSpecs(redirects=Std.NONE),
    )
    try:
        return _outcome(_wait(processes))
    except SignalException as signalled:
        processes.close(signalled.sigval)
        raise
    finally:
        processes.close()


def _wait(processes: PContext) -> RunProcsResult:
    while True:
        result = processes.wait(timeout=0)
        if result is not None:
            return result
        time.sleep(POLL_S)


def _outcome(result: RunProcsResult) -> str | None:
    if not result.is_failed():
        return None
    first = min(result.failures.values(), key=lambda failure: failure.timestamp)
    code = first.exitcode
    how = f"was killed by {first.signal_name()}" if code < 0 else f"ended with {code}"
    return f"that of rank {first.local_rank} {how}"


def _environment(
    job: Job, rank: int, count: int, restart: int, port: int, run_id: str
) -> dict[str, str]:
    own = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": HOST,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": restart,
        "TORCHELASTIC_MAX_RESTARTS": job.max_restarts,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the launcher has it
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    return {name: str(value) for name, value in own.items()}


def _say(text: str) -> None:
    sys.stderr.write(f"tensoropt elastic: {text}\n")
    sys.stderr.flush()


def _range(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    numbers = int(least), int(most or least)
    if not 1 <= numbers[0] <= numbers[1]:
        raise ValueError
    return numbers


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tensoropt_torch.elastic",
        description="Starts a script on the processes of this machine, as torchrun, and if one of "
        "them ends, again with one less. For several machines: torchrun --nnodes 1:4.",
    )
    parser.add_argument(
        "--processes",
        required=True,
        type=_range,
        metavar="LEAST:MOST",
        help="the job begins with MOST processes and goes on down to LEAST",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        metavar="N",
        help="how often it is started again; by default once for each process less",
    )
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    given = parser.parse_args(arguments)
    least, most = given.processes
    restarts = most - least if given.max_restarts is None else given.max_restarts
    if restarts < 0:
        parser.error(f"--max-restarts {restarts} is not allowed: give a number from 0")
    if not os.path.isfile(given.script):
        parser.error(f"'{given.script}' is no file; give a Python script")
    command = ["-u", given.script, *given.arguments]
    return Job(command, least, most, restarts).run()
