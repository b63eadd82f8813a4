"""Each family in a process of its own, some at a time, none longer than a limit."""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

import torch

from benchmarks.families.study import Record, study

POLL_S = 0.5


def studied(
    families: Sequence[str],
    jobs: int = 2,
    limit_s: float = 120.0,
    preloaded: Sequence[str] = ("benchmarks.families.warm",),
) -> Iterator[tuple[str, Record]]:
    """The families with what was found, as they end. The server that their processes are forked
    from, of which a program has one, has imported what is ``preloaded``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    waiting = list(reversed(families))
    running: list[_Run] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_Run(context, waiting.pop(), limit_s))
        wait([run.receiver for run in running], POLL_S)
        for run in [run for run in running if run.is_over()]:
            running.remove(run)
            yield run.family, run.found()


class _Run:
    """One family in its process."""

    def __init__(self, context: ForkServerContext, family: str, limit_s: float) -> None:
        self.family = family
        self._limit_s = limit_s
        self._end = time.monotonic() + limit_s
        self.receiver, sender = context.Pipe(duplex=False)
        self._process: ForkServerProcess = context.Process(target=_send, args=(sender, family))
        self._process.start()
        sender.close()

    def is_over(self) -> bool:
        return self.receiver.poll() or time.monotonic() > self._end

    def found(self) -> Record:
        try:
            found: Any = self.receiver.recv() if self.receiver.poll() else None
        except EOFError:
            self._process.join()
            found = {"verdict": "ended", "why": f"its process ended by {self._process.exitcode}"}
        self._process.kill()
        self._process.join()
        if found is not None and "why" in found:
            found["why"] = _without_folders(str(found["why"]))
        late = f"not within {self._limit_s:.0f} s"
        return found or {"verdict": "too slow", "why": late}


def _without_folders(text: str) -> str:
    """Files of libraries, wherever they are on this machine."""
    return re.sub(r"/\S*?/site-packages/", "", text)


def _send(sender: Connection, family: str) -> None:
    torch.set_num_threads(1)
    try:
        found = study(family)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        found = {"verdict": "crashed", "why": text[:500]}
    sender.send(found)
