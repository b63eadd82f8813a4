"""Points of a program: calls of functions of ours, counted by what the program does.

::

    points = Points(Point("save", 40), action)
    with points.stage("save"):           # the 40th call inside runs ``action``
        ...
    points.counts["save"]                # how many there were
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch.distributed.checkpoint

import tensoropt_torch

# Also of what writes and reads checkpoints, in threads of its own.
_FOLDERS = tuple(
    f"{Path(str(package.__file__)).parent}/"
    for package in (tensoropt_torch, torch.distributed.checkpoint)
)
WRITING = "save"  # what threads beside the program's own do


@dataclass(frozen=True)
class Point:
    """The call of a stage with this number, from 1."""

    stage: str
    number: int


class Points:
    """Counts calls, also in threads that begin inside of a stage, and runs ``action`` at one of
    them, with the name of the function. Counting takes time: where no point is wanted, and
    nothing ``counts_all``, there is none.

    Args:
        alone: the action raises, so that it is only run where the program itself is.
    """

    def __init__(
        self,
        wanted: Point | None,
        action: Callable[[str], None],
        alone: bool = False,
        counts_all: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._wanted = wanted
        self._counts_all = counts_all
        self._action = action
        self._alone = alone
        self._stage = ""
        self._known: dict[CodeType, bool] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Inside, calls are of this stage."""
        wanted = self._wanted is not None and self._wanted.stage == name
        if not wanted and not self._counts_all:
            yield
            return
        self._stage = name
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            self._stage = ""

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._is_ours(frame.f_code):
            return
        is_main = threading.current_thread() is threading.main_thread()
        stage = self._stage if is_main else WRITING
        if not stage:
            return
        self.counts[stage] += 1
        wanted = self._wanted
        if wanted is None or stage != wanted.stage or self.counts[stage] < wanted.number:
            return
        if self._alone and not is_main:
            return
        self._wanted = None
        self._action(frame.f_code.co_qualname)

    def _is_ours(self, code: CodeType) -> bool:
        known = self._known.get(code)
        if known is None:
            known = self._known[code] = code.co_filename.startswith(_FOLDERS)
        return known
