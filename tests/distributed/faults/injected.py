"""What faults do to the process that they are in."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOW_S = 3.0
FULL_BYTES = 600  # that files may still have
JUMPS_S = (-3600.0, 3600.0, 86400.0 * 400, -86400.0 * 400, -time.time() + 1)
_WRITES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod")


class InjectedError(Exception):
    """What a program may raise anywhere."""


def kill(_: Any) -> None:
    """As the system does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_: Any) -> None:
    """As a machine that hangs: its connections stay."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fail(_: Any) -> None:
    raise InjectedError("a fault of the test")


def be_slow(_: Any) -> None:
    time.sleep(SLOW_S)


def fill_disk(_: Any) -> None:
    """Files of this process get no larger than some bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.RLIM_INFINITY))


def make_read_only(given: Any) -> None:
    """The folder, for this process; also where it is root's."""
    folder = given["folder"]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            path, writes = arguments[0] if arguments else "", event in _WRITES
        if writes and isinstance(path, str | os.PathLike) and str(path).startswith(folder):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    sys.addaudithook(hook)


def break_cache(given: Any) -> None:
    """Each file of a folder is damaged: cut, emptied, or with other bytes."""
    draw = random.Random(given["seed"])
    for path in sorted(Path(given["folder"]).rglob("*.json")):
        data = bytearray(path.read_bytes())
        kind = draw.randrange(4)
        if kind == 0:
            data = data[: len(data) // 2]
        elif kind == 1:
            data.clear()
        elif kind == 2:
            for _ in range(5):
                data[draw.randrange(len(data))] = draw.randrange(256)
        else:
            data = bytearray(b'{"content": null}')
        path.write_bytes(data)


def jump_clock(given: Any) -> None:
    """The time of day; what counts seconds goes on."""
    jump_s = random.Random(given["seed"]).choice(JUMPS_S)
    now, now_ns = time.time, time.time_ns
    time.time = lambda: max(0.0, now() + jump_s)
    time.time_ns = lambda: max(0, now_ns() + int(jump_s * 1e9))


def drop_connections(given: Any) -> None:
    """Of those to other ranks some, at least one: not that to the store."""
    draw, found = random.Random(given["seed"]), []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            own = socket.socket(fileno=os.dup(number))
            if own.family == socket.AF_INET and own.getpeername()[1] != given["port"]:
                found.append(own)
        except OSError:  # it listens, or has been closed
            continue
    kept = draw.sample(found, draw.randint(1, len(found))) if found else []
    for own in kept:
        own.shutdown(socket.SHUT_RDWR)


# By the name of the fault; what each is given is in ``cases.py``.
ACTIONS: dict[str, Callable[[Any], None]] = {
    "kill": kill,
    "stop": stop,
    "exception": fail,
    "slow rank": be_slow,
    "full disk": fill_disk,
    "read-only folder": make_read_only,
    "broken cache": break_cache,
    "clock jump": jump_clock,
    "connection dropped": drop_connections,
}
