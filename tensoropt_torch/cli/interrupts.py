"""Ctrl-C of a command: one line, and the exit status of shells for it.

Python hears it between its own instructions, and a search is one call of C++ that may take a
minute. So a thread hears it too, and ends the process if the command has not ended soon after.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # the exit status
_LINE = "tensoropt: interrupted\n"
_GRACE_S = 1.0


@contextmanager
def interrupts_heard() -> Iterator[None]:
    """Inside, an interrupt raises KeyboardInterrupt as ever, and ends the process a second later
    if that has not got through."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = threading.Event()
    heard, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    thread = threading.Thread(target=_end_on_interrupt, args=(heard, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        os.close(told)
        thread.join()
        os.close(heard)


def tell_interrupted() -> int:
    """Says so; returns the exit status."""
    sys.stderr.write(_LINE)
    return INTERRUPTED


def _end_on_interrupt(heard: int, ended: threading.Event) -> None:
    while received := os.read(heard, 1):
        if received[0] == signal.SIGINT and not ended.wait(_GRACE_S):
            os.write(2, _LINE.encode())
            os._exit(INTERRUPTED)
