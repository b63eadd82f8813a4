"""Runs a test function on several ranks, each a process of its own.

    results = run_ranks(4, "tests.distributed.cases:gather", {"size": 8}, 60)

The function gets the payload, after ``init_process_group`` (Gloo); its results
come back by rank. If a rank fails, ``RankError`` shows its traceback. Nothing is
left running and nothing waits for ever: after ``timeout_s`` all processes are
killed.

Ranks are forked from a server that has imported what takes seconds (``warm.py``).
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import pickle
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import TCPStore

PRELOADED = ("tests.distributed.warm",)
POLL_S = 0.01
HOST = "127.0.0.1"
LATE_S = 5.0  # how long the other ranks may take to end after a failure

Outcome = tuple[bool, Any]  # (succeeded, result or (time, traceback))


class RankError(AssertionError):
    """A rank failed or the time was over; the message says what happened."""


def run_ranks(
    world_size: int,
    function: str,
    payload: Any = None,
    timeout_s: float = 120.0,
    preloaded: Sequence[str] = PRELOADED,
) -> list[Any]:
    """Runs ``module:function`` on every rank; returns the results by rank.

    The payload and the results must be picklable. The server that ranks are forked
    from has imported what was ``preloaded`` when it started.
    """
    context = _context(preloaded)
    store = _store()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = []
        try:
            for rank in range(world_size):
                job = _Job(rank, world_size, store.port, folder, timeout_s)
                ranks.append(context.Process(target=_run, args=(job, function, payload)))
                ranks[-1].start()
            codes = _wait(ranks, timeout_s)
            _ask_where(ranks)
        finally:
            _kill(ranks)
        outcomes = [_read(folder / f"result{rank}") for rank in range(world_size)]
        output = "".join(
            (folder / f"output{rank}").read_text(errors="replace")[-4000:]
            for rank in range(world_size)
            if (folder / f"output{rank}").exists()
        )
    return _results(codes, outcomes, output)


def forget_plans(home: str) -> None:
    """In this folder of measurements, for all ranks: what was measured stays."""
    import torch.distributed as dist

    for path in Path(home).glob("plans/*.json"):
        path.unlink(missing_ok=True)
    dist.barrier()


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _store() -> TCPStore:
    """Where ranks meet, kept here as torchrun keeps it in its agent: at a port that it picks
    itself, which jobs beside this one cannot take in between."""
    from torch.distributed import TCPStore

    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


def _context(preloaded: Sequence[str]) -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the server, read when it starts
    return context


def _wait(ranks: list[ForkServerProcess], timeout_s: float) -> list[int | None]:
    """Until all have ended, one has failed, or the time is over.

    Returns the exit codes so far; None for ranks that still run.
    """
    end = time.monotonic() + timeout_s
    while True:
        codes = [process.exitcode for process in ranks]
        now = time.monotonic()
        if None not in codes or now > end:
            return codes
        if any(codes):
            # The others may be waiting for it: give them a moment only.
            end = min(end, now + LATE_S)
        time.sleep(POLL_S)


def _ask_where(ranks: list[ForkServerProcess]) -> None:
    """Ranks that still run write tracebacks of their threads."""
    running = [process.pid for process in ranks if process.exitcode is None]
    for pid in running:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGUSR1)
    if running:
        time.sleep(0.5)


def _kill(ranks: list[ForkServerProcess]) -> None:
    """Ends each process that still runs, with what it has started."""
    for process in ranks:
        if process.pid is not None and process.exitcode is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has no process group yet, or has ended
                process.kill()
            process.join()


def _read(path: Path) -> Outcome | None:
    """The outcome of a rank; None if it wrote nothing."""
    if not path.exists():
        return None
    outcome: Outcome = pickle.loads(path.read_bytes())
    return outcome


def _results(codes: list[int | None], outcomes: list[Outcome | None], output: str) -> list[Any]:
    stuck = [rank for rank, code in enumerate(codes) if code is None]
    if stuck and not any(codes):
        raise RankError(f"ranks {stuck} did not end in time; output:\n{output}")
    dead = [r for r, code in enumerate(codes) if code and outcomes[r] is None]
    if dead:
        raise RankError(f"ranks {dead} died; exit codes {codes}; output:\n{output}")
    # The first rank that failed, not those that lost their connection to it.
    failures = [
        (outcome[1], rank)
        for rank, outcome in enumerate(outcomes)
        if outcome is not None and not outcome[0]
    ]
    if failures:
        (_, text), rank = min(failures)
        raise RankError(f"rank {rank} failed:\n{text}")
    if any(codes) or None in outcomes:
        raise RankError(f"ranks ended with codes {codes}; output:\n{output}")
    return [outcome[1] for outcome in outcomes if outcome is not None]


@dataclass(frozen=True)
class _Job:
    """What one rank has to know; the port is that of the store."""

    rank: int
    world_size: int
    port: int
    folder: Path
    timeout_s: float


def _run(job: _Job, function: str, payload: Any) -> None:
    """One rank: what a process started by ``run_ranks`` does."""
    _separate(job.folder / f"output{job.rank}", job.timeout_s)
    os.environ |= {
        "RANK": str(job.rank),
        "LOCAL_RANK": str(job.rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(job.world_size),
    }
    outcome = _outcome(job, function, payload)
    temporary = job.folder / f"unfinished{job.rank}"
    temporary.write_bytes(pickle.dumps(outcome))
    temporary.rename(job.folder / f"result{job.rank}")
    if not outcome[0]:
        os._exit(1)  # groups of other ranks may be in use: do not wait for them


def _separate(output: Path, timeout_s: float) -> None:
    """A process group, an output file and an end of this rank's own."""
    os.setsid()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.register(signal.SIGUSR1, file=2)
    faulthandler.enable(file=2)  # says where a rank was that ends by a signal
    # Should the tests themselves be killed, nobody else would end this process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(timeout_s + 2 * LATE_S) + 1)


def _outcome(job: _Job, function: str, payload: Any) -> Outcome:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        store = dist.TCPStore(HOST, job.port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=job.rank, world_size=job.world_size)
        module, _, name = function.partition(":")
        result = getattr(importlib.import_module(module), name)(payload)
        _wait_for_others()
        dist.destroy_process_group()
    except BaseException:
        return False, (time.monotonic(), traceback.format_exc())
    return True, result


def _wait_for_others() -> None:
    """For some seconds: they may still be connecting to this rank. Without its groups, which a
    test may have broken."""
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    with contextlib.suppress(RuntimeError):  # a rank that failed sets nothing
        store.set(f"done/{dist.get_rank()}", "")
        names = [f"done/{rank}" for rank in range(dist.get_world_size())]
        store.wait(names, timedelta(seconds=LATE_S))
