"""Whether the process of another rank is there, as far as this one can see: on its own machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

State = Literal["runs", "stopped", "gone", "unknown"]


@dataclass(frozen=True)
class Process:
    """A process, to be told from all others.

    Attributes:
        machine: where its number is one: the system that was booted, and the namespace there.
        pid: its number.
        begun: when it began, as the system counts; another one may get its number.
    """

    machine: str
    pid: int
    begun: str

    def state(self) -> State:
        """``unknown``: on another machine, or without ``/proc``."""
        if not self.machine or self.machine != _machine():
            return "unknown"
        try:
            state, begun = _status(self.pid)
        except OSError:
            return "gone"
        if begun != self.begun or state in ("Z", "X"):
            return "gone"
        return "stopped" if state in ("T", "t") else "runs"


def this_process() -> Process:
    """The one that calls."""
    machine, pid = _machine(), os.getpid()
    return Process(machine, pid, _status(pid)[1] if machine else "")


@cache
def _machine() -> str:
    """Empty if processes cannot be told."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        _status(os.getpid())
        return f"{booted} {os.stat('/proc/self/ns/pid').st_ino}"
    except (OSError, ValueError, IndexError):
        return ""


def _status(pid: int) -> tuple[str, str]:
    """Its state, a letter, and when it began.

    Raises:
        OSError: there is none.
    """
    # The name before them, in brackets, may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], fields[19]
