"""A function in a process of its own: for limits, and for peak memory."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def run_isolated(function: Callable[..., Any], *arguments: Any) -> Any | None:
    """``function(*arguments)`` in a new process; None if ``limit_process`` ended it.

    The function is one of a module; its arguments and its value can be pickled.

    Raises:
        RuntimeError: the function raised, or its process died; says how.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        failure, value = receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGALRM:
            return None
        name = function.__name__
        raise RuntimeError(f"the process of {name} died with code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if failure:
        raise RuntimeError(failure)
    return value


def limit_process(limit_s: float, memory_bytes: int) -> None:
    """End this process so many seconds from now, whatever it computes then; let
    allocations fail that would take it beyond ``memory_bytes``."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)


def _report(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        sender.send(("", function(*arguments)))
    except Exception:
        sender.send((traceback.format_exc(), None))
    sender.close()
