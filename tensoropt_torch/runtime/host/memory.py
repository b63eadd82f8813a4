"""What the C library does with memory of the host that is freed.

glibc gives the free end of its heap back to the system at once (``mallopt(3)``). Training
frees activations and gradients in every step and allocates them again in the next, which
then costs a page fault for every 4 KiB. Kept by the process, they cost none. Blocks above
``LARGEST_KEPT`` are mapped one by one and given back as before.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

OFF = "TENSOROPT_KEEP_MEMORY"  # of the environment; 0 turns it off

LARGEST_KEPT = 32 << 20  # in bytes, the most that glibc allows

# Whoever has chosen one of these has decided how memory is kept.
CHOICES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
)
TUNABLES = "GLIBC_TUNABLES"

# Of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = -1


def may_keep_memory() -> bool:
    """Whether freed memory can be kept here, and the user wants it."""
    chosen = any(name in os.environ for name in CHOICES)
    chosen |= "glibc.malloc." in os.environ.get(TUNABLES, "")
    return not chosen and os.environ.get(OFF) != "0" and _glibc() is not None


def keep_memory() -> None:
    """From now on the process keeps what it frees, where that is possible."""
    library = _glibc() if may_keep_memory() else None
    if library is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT)
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)


def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is glibc and ``malloc`` is its own."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return None
    library = ctypes.CDLL("libc.so.6")
    return library if _address(process.malloc) == _address(library.malloc) else None


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
