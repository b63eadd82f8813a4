"""Progress: a bar on a terminal, lines elsewhere, nothing beside what is measured."""

from __future__ import annotations

import io
import itertools
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

from tensoropt_torch import progress as progress_module
from tensoropt_torch.logs import LIBRARY
from tensoropt_torch.progress import LINE_EVERY_S, progress

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
MARK = "\x00"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A terminal, which takes the place of stderr when a test looks on, since pytest sets its
    own between a fixture and its test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._reader, writer = pty.openpty()
        tty.setraw(writer)
        self.file: TextIO = os.fdopen(writer, "w", buffering=1)

    def look_on(self) -> None:
        self._monkeypatch.setattr(sys, "stderr", self.file)

    def read(self) -> str:
        """What is new. The system takes its time to carry it over, so a mark ends it."""
        self.file.write(MARK)
        self.file.flush()
        text = ""
        while not text.endswith(MARK):
            text += os.read(self._reader, 1 << 20).decode()
        return text.removesuffix(MARK)

    def close(self) -> None:
        self.file.close()
        os.close(self._reader)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    made = Terminal(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines of the log."""
    caplog.set_level(logging.INFO, LIBRARY)
    return lambda: [record.message for record in caplog.records]


def seconds(monkeypatch: pytest.MonkeyPatch, each_s: float) -> None:
    """A clock that goes on by so much whenever it is looked at."""
    ticks = itertools.count()
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: each_s * next(ticks))


def test_a_terminal_shows_how_far_it_is(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.look_on()
    seconds(monkeypatch, 1.0)
    with progress("measuring", 3, about_s=42, at_most_s=60) as step:
        begun = terminal.read()
        step("the first")
        between = terminal.read()
        print("to stdout")
    ended = terminal.read()
    assert "measuring (about 42 s, at most 60 s)" in begun and "0/3" in begun
    assert "1/3" in between and "the first" in between
    assert begun.startswith(HIDE_CURSOR) and SHOW_CURSOR in ended
    assert CONTROL.sub("", ended).splitlines()[-1].strip() == ""  # nothing stays
    assert capsys.readouterr().out == "to stdout\n"


def test_nothing_runs_between_steps(terminal: Terminal) -> None:
    terminal.look_on()
    threads = threading.active_count()
    with progress("measuring", 1000) as step:
        assert threading.active_count() == threads
        assert "0/1000" in terminal.read()
        step()
        step()
        assert terminal.read() == ""  # too soon to be drawn again
    with progress("searching", ticking=True):
        assert threading.active_count() == threads + 1
    end = time.monotonic() + 10  # it notices by itself
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == threads


def test_an_error_ends_the_bar(terminal: Terminal) -> None:
    terminal.look_on()
    with pytest.raises(ZeroDivisionError), progress("measuring"):
        raise ZeroDivisionError
    assert SHOW_CURSOR in terminal.read()
    with progress("measuring"):  # nothing is left of the other one
        assert "measuring" in terminal.read()


def test_other_ranks_are_silent(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.look_on()
    monkeypatch.setattr(progress_module, "rank_of_job", lambda: 1)
    with progress("measuring", 3) as step:
        step()
    assert terminal.read() == ""


def test_what_goes_on_inside_is_not_told(
    terminal: Terminal, told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.look_on()
    seconds(monkeypatch, 1.0)
    with progress("outer", 2) as step:
        with progress("inner", 5) as inner:
            inner()
        step()
    assert "inner" not in terminal.read()
    assert not any("inner" in line for line in told())
    with progress("alone", 5):
        assert "alone" in terminal.read()


@pytest.mark.parametrize("colour", [False, True])
def test_without_a_terminal_there_are_lines(
    colour: bool, told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few of them, however many steps there are; also where colour is asked for."""
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    if colour:
        monkeypatch.setenv("FORCE_COLOR", "1")
    seconds(monkeypatch, LINE_EVERY_S / 50)
    with progress("measuring", 120, about_s=7.25) as step:
        for index in range(100):
            step(f"the {index}th")
        step(more=0, total=100)
    lines = told()
    assert lines[0] == "measuring (about 7.2 s): 120"
    assert lines[1] == "measuring (about 7.2 s): 49 of 120 after 5.0 s, the 48th"
    assert len(lines) == 4
    assert lines[-1] == "measuring: 100 of 100 in 10 s"
    assert file.getvalue() == ""


def test_a_callback_takes_the_place_of_the_bar(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on other ranks; it is told what has changed."""
    terminal.look_on()
    monkeypatch.setattr(progress_module, "rank_of_job", lambda: 1)
    calls: list[tuple[int, int, str]] = []
    with progress("measuring", 3, tell=lambda *state: calls.append(state)) as step:
        step("device", more=0)
        step(more=0)
        step("network", more=2)
        step(total=4)
        with progress("inside", 5) as inner:
            inner()
    assert calls == [(0, 3, "device"), (2, 3, "network"), (3, 4, "network")]
    assert terminal.read() == ""


STARTS = """
import sys, torch, tensoropt_torch.progress
with tensoropt_torch.progress.progress("waiting", 1) as step:
    step()
print([name for name in ("rich", "matplotlib", "transformers", "lightning") if name in sys.modules])
"""


def test_what_nobody_looks_at_loads_nothing_to_draw_with() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
