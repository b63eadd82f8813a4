"""How the system schedules the threads that move data between processes on CPUs.

Gloo's threads sleep until data arrives, and must run at once then: a rank waits for
them, and the other ranks for it. A scheduler that shares cores fairly lets them wait
for the threads that compute, for milliseconds where a message takes microseconds. With
real-time priority (``sched(7)``) they do not wait. That has to be permitted: to root, with
``CAP_SYS_NICE``, or by a limit (``ulimit -r``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# As PyTorch and Gloo name them, cut to 15 characters by Linux.
NETWORK_THREADS = ("gloo_tcp_loop", "pt_gloo_runloop")
PRIORITY = 1  # the lowest that is real-time

OFF = "TENSOROPT_REALTIME"  # of the environment; 0 turns it off


def may_prioritise_network() -> bool:
    """Whether threads may get real-time priority here, and the user wants it."""
    permitted = []
    # On a thread that ends then, so that nothing else changes.
    probe = threading.Thread(target=lambda: permitted.append(_prioritise(0)))
    probe.start()
    probe.join()
    return permitted == [True]


def prioritise_network() -> None:
    """Gives Gloo's threads of this process real-time priority, if that is permitted:
    those that have their names already, see ``started_with_priority``."""
    tasks = Path("/proc/self/task")
    for task in tasks.iterdir() if tasks.exists() else ():
        if _name(task) in NETWORK_THREADS:
            _prioritise(int(task.name))


@contextmanager
def started_with_priority() -> Iterator[None]:
    """Threads that the calling one starts inside get real-time priority, if that is
    permitted. The calling one has it meanwhile, since threads inherit it."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    changed = _prioritise(0)
    try:
        yield
    finally:
        if changed:
            os.sched_setscheduler(0, *before)


def _prioritise(thread: int) -> bool:
    """Of a thread by its number, 0 for the calling one; whether it could be done."""
    if os.environ.get(OFF) == "0":
        return False
    try:
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (PermissionError, ProcessLookupError):
        return False
    return True


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
