"""Figures and types as people read them."""

from __future__ import annotations

import math


def dtype_name(dtype: object) -> str:
    """``torch.bfloat16`` and ``"bfloat16"`` are ``bfloat16``, as in C++ and in files."""
    return str(dtype).removeprefix("torch.")


def format_bytes(count: float) -> str:
    """E.g. ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def format_costs(memory_bytes: float, time_s: float) -> str:
    """E.g. ``1.50 GiB per device, 12.3 ms a step``."""
    return f"{format_bytes(memory_bytes)} per device, {format_seconds(time_s)} a step"


def format_seconds(seconds: float) -> str:
    """E.g. ``12.3 ms``."""
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def format_duration(seconds: float) -> str:
    """What a person waits, e.g. ``1.3 s``, ``42 s`` or ``6 min``."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def format_step(seconds: float) -> str:
    """A predicted step time, to four digits: ``0.9874 s``, ``12.35 ms``."""
    if seconds >= 0.1:
        return f"{_digits(seconds, 4)} s"
    return f"{_digits(seconds * 1e3, 4)} ms" if seconds >= 1e-4 else format_seconds(seconds)


def format_part(seconds: float) -> str:
    """Of a predicted step, what a part of it takes, to three digits: ``1.25 s``, ``81.1 ms``."""
    if seconds >= 1:
        return f"{_digits(seconds, 3)} s"
    if seconds >= 1e-3:
        return f"{_digits(seconds * 1e3, 3)} ms"
    return f"{_digits(seconds * 1e6, 3)} us" if seconds > 0 else "0 s"


def format_share(share: float) -> str:
    """E.g. ``12.5%``, ``6.0%`` or ``100%``."""
    return "100%" if share == 1 else f"{100 * share:.1f}%"


def _digits(value: float, count: int) -> str:
    """So many digits, or all before the point."""
    before = math.floor(math.log10(value)) + 1
    return f"{value:.{max(0, count - before)}f}"
