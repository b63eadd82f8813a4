"""How far something is that takes seconds: a bar where a person looks on, else lines of the log.

::

    with progress("measuring operators", total=len(picks), about_s=10) as step:
        for pick in picks:
            measure(pick)
            step()

Rank 0 of a job draws a bar on stderr if that is a terminal, or in a notebook; without either
it logs a line (INFO) at the beginning, one at the end, and between them one in
``LINE_EVERY_S`` at most. Other ranks say nothing, and so does what goes on inside of something
else that is told. A bar is drawn when ``step`` is called and at no other time, so that nothing
runs beside what is measured between two calls.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

from tensoropt_torch.logs import get_logger, rank_of_job
from tensoropt_torch.units import format_duration

log = get_logger(__name__)

LINE_EVERY_S = 5.0
DRAW_EVERY_S = 0.1

# Steps done and in all (0: nobody knows), and what it is at.
Tell = Callable[[int, int, str], None]

_inside: ContextVar[bool] = ContextVar("tensoropt_progress", default=False)


class Step(Protocol):
    """What is called on the way."""

    def __call__(self, now: str | None = None, *, more: int = 1, total: int | None = None) -> None:
        """``more`` steps are done. With 0 only the time goes on, or what it is at.

        Args:
            now: what it is at from here on.
            total: steps in all, if they are others than was thought.
        """


def silent(now: str | None = None, *, more: int = 1, total: int | None = None) -> None:
    """The step of what nobody is told of."""


@contextmanager
def progress(
    what: str,
    total: int = 0,
    *,
    about_s: float | None = None,
    at_most_s: float | None = None,
    tell: Tell | None = None,
    ticking: bool = False,
) -> Iterator[Step]:
    """Tells of what is done inside.

    Args:
        what: is done, such as ``"measuring operators"``.
        total: steps, as far as is known; 0: not.
        about_s, at_most_s: how long that is thought to take, and is allowed to.
        tell: is told on every rank that gives it, in place of a bar and of lines between,
            whenever something has changed.
        ticking: the bar shows the time by a thread; for what calls no steps and measures
            nothing.
    """
    if _inside.get() or (tell is None and rank_of_job() != 0):
        yield silent
        return
    outer = _inside.set(True)
    try:
        title = f"{what}{_expected(about_s, at_most_s)}"
        log.info("%s%s", title, f": {total}" if total else "")
        with _display(title, total, tell, ticking) as show:
            count = _Count(total, show)
            yield count
        log.info("%s: %s in %s", what, count, format_duration(count.elapsed_s))
    finally:
        _inside.reset(outer)


class Phases:
    """What the parts of something took, that follow each other.

    ::

    phases = Phases()
    capture()
    phases.end("capture")
    str(phases)  # 1.2 s: capture 1.2 s
    """

    def __init__(self) -> None:
        self._last_s = time.monotonic()
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        """What was done since the phase before, or since this was made, is of that name."""
        now_s = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now_s - self._last_s
        self._last_s = now_s

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    def __str__(self) -> str:
        parts = (f"{name} {format_duration(seconds)}" for name, seconds in self.seconds.items())
        return f"{format_duration(self.total_s)}: {', '.join(parts)}"


def _expected(about_s: float | None, at_most_s: float | None) -> str:
    given = (("about", about_s), ("at most", at_most_s))
    parts = [f"{word} {format_duration(s)}" for word, s in given if s is not None]
    return f" ({', '.join(parts)})" if parts else ""


class _Count:
    """How far it is."""

    def __init__(self, total: int, show: Tell) -> None:
        self._show = show
        self._start_s = time.monotonic()
        self._done = 0
        self._total = total
        self._now = ""

    def __call__(self, now: str | None = None, *, more: int = 1, total: int | None = None) -> None:
        self._done += more
        self._total = self._total if total is None else total
        self._now = self._now if now is None else now
        self._show(self._done, self._total, self._now)

    def __str__(self) -> str:
        return _amount(self._done, self._total)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s


def _amount(done: int, total: int) -> str:
    return f"{done} of {total}" if total else f"{done}" if done else "done"


def _display(
    title: str, total: int, tell: Tell | None, ticking: bool
) -> AbstractContextManager[Tell]:
    if tell is not None:
        return nullcontext(_changes(tell, total))
    return _bar(title, total, ticking) if _is_watched() else nullcontext(_Lines(title))


def _is_watched() -> bool:
    """Whether stderr is a terminal or a notebook. Variables that ask for colour in files
    (``FORCE_COLOR``) make no terminal of them."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not is_terminal and "IPython" not in sys.modules:
        return False  # without rich, whose import a job that starts would wait for
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_jupyter or (console.is_interactive and console.file.isatty())


def _changes(tell: Tell, total: int) -> Tell:
    """Calls it with what is new only."""
    last = (0, total, "")

    def show(done: int, total: int, now: str) -> None:
        nonlocal last
        if (done, total, now) != last:
            last = (done, total, now)
            tell(*last)

    return show


class _Lines:
    """Some lines of the log, whatever the number of steps."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._start_s = self._said_s = time.monotonic()

    def __call__(self, done: int, total: int, now: str) -> None:
        at_s = time.monotonic()
        if at_s - self._said_s >= LINE_EVERY_S:
            self._said_s = at_s
            after = format_duration(at_s - self._start_s)
            amount = _amount(done, total)
            log.info("%s: %s after %s%s", self._title, amount, after, f", {now}" if now else "")


@contextmanager
def _bar(title: str, total: int, ticking: bool) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    # Names of users are shown as they are.
    text = TextColumn("{task.description}", markup=False)
    now_text = TextColumn("{task.fields[now]}", markup=False)
    amount = (MofNCompleteColumn(),) if total else ()
    columns = (text, BarColumn(), *amount, TimeElapsedColumn(), now_text)
    # What the program prints to stdout stays there.
    with Progress(
        *columns, console=console, transient=True, auto_refresh=ticking, redirect_stdout=False
    ) as bar:
        task = bar.add_task(title, total=total or None, now="")
        drawn_s = time.monotonic()

        def show(done: int, total: int, now: str) -> None:
            nonlocal drawn_s
            bar.update(task, completed=done, total=total or None, now=now)
            if time.monotonic() - drawn_s >= DRAW_EVERY_S:
                bar.refresh()
                drawn_s = time.monotonic()

        yield show
