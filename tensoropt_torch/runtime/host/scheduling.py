"""How the system schedules the threads that move data between processes on CPUs.

Gloo's threads sleep until data arrives, and should run soon then: a rank waits for them,
and the other ranks for it. A scheduler that shares cores fairly lets them wait for the
threads that compute, for milliseconds where a message takes microseconds. If the
environment asks for it they get a larger share of the cores (``nice(2)``), and so run
sooner when they wake.

Never real-time priority: these threads spin. Gloo's event loop tries to lock a connection
(``Pair::handleEvents`` of ``gloo/transport/tcp/pair.cc``) and polls again at once while
another thread has it; a buffer's end (``gloo/common/memory.h``) yields until the loop is
done with it. Whoever is waited for has to be able to run, and may be any thread of the
process: the owner of a connection allocates memory, so that it waits for the allocator's
locks in turn. Shares of ordinary scheduling give every thread some time, whatever spins.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensoropt_torch.errors import TensorOptError

# As PyTorch and Gloo name them, cut to 15 characters by Linux.
NETWORK_THREADS = ("gloo_tcp_loop", "pt_gloo_runloop")
NICE = -5  # three times the share of a thread at 0

ASKED = "TENSOROPT_FAVOUR_NETWORK"  # of the environment; 1 asks for it


def favours_network(device_type: str) -> bool:
    """Whether the environment asks that threads of the network are favoured.

    Raises:
        TensorOptError: it asks for what has no effect or is not permitted here, or has
            another value than 0 and 1.
    """
    asked = os.environ.get(ASKED, "0")
    if asked not in ("0", "1"):
        raise TensorOptError(f"{ASKED} is '{asked}'; set it to 1, or to 0 (or not at all)")
    if asked == "0":
        return False
    if device_type != "cpu":
        raise TensorOptError(
            f"{ASKED}=1 is about Gloo's threads on CPUs, and has no effect on device "
            f"'{device_type}'; unset it"
        )
    if not is_permitted():
        raise TensorOptError(
            f"{ASKED}=1 needs the permission for a nice value of {NICE}: be root, have "
            f"CAP_SYS_NICE, or 'ulimit -e {20 - NICE}'; or unset it"
        )
    return True


def favour_network() -> None:
    """Gives Gloo's threads of this process a larger share: those that have their names
    already, see ``started_favoured``. Requires the permission."""
    for thread in network_threads():
        _renice(thread, NICE)


def network_threads() -> list[int]:
    """The numbers of Gloo's threads of this process, on Linux."""
    tasks = Path("/proc/self/task").iterdir()
    return [int(task.name) for task in tasks if _name(task) in NETWORK_THREADS]


@contextmanager
def started_favoured() -> Iterator[None]:
    """Threads that the calling one starts inside have a larger share. The calling one has
    it meanwhile, since threads inherit it. Requires the permission."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    _renice(0, NICE)
    try:
        yield
    finally:
        _renice(0, before)


def _renice(thread: int, nice: int) -> None:
    """Of a thread by its number, 0 for the calling one."""
    try:
        os.setpriority(os.PRIO_PROCESS, thread, nice)
    except ProcessLookupError:  # it has ended
        return


def is_permitted() -> bool:
    """Whether threads may get the larger share here."""
    permitted = []

    def try_it() -> None:
        try:
            _renice(0, NICE)
        except PermissionError:
            return
        permitted.append(True)

    # On a thread that ends then, so that nothing else changes.
    probe = threading.Thread(target=try_it)
    probe.start()
    probe.join()
    return bool(permitted)


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
