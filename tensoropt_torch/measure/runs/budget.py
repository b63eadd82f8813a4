"""Time that measuring may take, on whose end all ranks agree."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tensoropt_torch.checks import check_number
from tensoropt_torch.measure.machine.clock import SharedClock

# Asked on all ranks at once, and answered alike: whether to go on, after so many were measured.
GoesOn = Callable[[int], bool]


def always(_: int) -> bool:
    """Goes on to the end."""
    return True


class OutOfTimeError(Exception):
    """The time was over before anything was measured; raised on all ranks."""


class Budget:
    """Seconds from now on; None: no limit. By the clock of the rank that is last, so that
    no rank decides alone."""

    def __init__(self, seconds: float | None, device: torch.device) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._device = device
        self._clock = SharedClock(device)

    def is_spent(self) -> bool:
        """Equal on all ranks. Collective, if there is a limit."""
        return self._left_s() <= 0

    def share(self, parts: int) -> Budget:
        """One of equal parts of what is left, from now on. Collective, likewise."""
        return Budget(self._left_s() / parts, self._device)

    def _left_s(self) -> float:
        if self._seconds == math.inf:
            return math.inf
        return self._seconds - self._clock.elapsed_s()


def check_budget(name: str, seconds: float | None) -> None:
    """Raises TensorOptError unless it is a number of seconds, or None."""
    if seconds is not None:
        check_number(name, seconds, hint="; give seconds, or None for no limit")
