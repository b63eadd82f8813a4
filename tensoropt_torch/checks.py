"""Numbers that a user gives for planning: each is checked once, before it is used."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tensoropt_torch.errors import TensorOptError


def check_number(name: str, value: Any, *, least: float = 0, hint: str = "") -> None:
    """Raises TensorOptError unless it is a number, infinity included, of at least this."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _error(name, value, f"a number of at least {least:g}", hint)
    if math.isnan(value) or value < least:
        raise _error(name, value, f"at least {least:g}", hint)


def check_whole(name: str, value: Any, *, least: int = 0, hint: str = "") -> None:
    """Raises TensorOptError unless it is a whole number of at least this."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _error(name, value, f"a whole number of at least {least}", hint)


def check_memory_limit(limit: Any) -> None:
    """Raises TensorOptError unless it is None or so many bytes."""
    if limit is not None:
        check_number("memory_limit", limit, hint="; give bytes per device, such as 12 * 2**30")


def check_counts(counts: Any) -> None:
    """Raises TensorOptError unless they are numbers of devices."""
    if isinstance(counts, str) or not isinstance(counts, Iterable):
        raise _error("device_counts", counts, "a list of numbers of devices", ", such as [1, 2, 4]")
    for count in counts:
        check_whole("device_counts", count, least=1)


def _error(name: str, value: Any, allowed: str, hint: str) -> TensorOptError:
    return TensorOptError(f"{name} = {value!r} is not allowed: it must be {allowed}{hint}")
