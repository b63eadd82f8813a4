"""Python's collector of garbage, while much is made that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """The collector looks through hundreds of thousands of objects over and over while they are
    made, for a tenth of the time. Afterwards it goes on as it was, and takes them for old ones,
    so that it does not look through them at once."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _take_for_old()
            gc.enable()


def _take_for_old() -> None:
    if gc.get_freeze_count() == 0:  # else the program would lose what it has frozen
        gc.freeze()
        gc.unfreeze()
