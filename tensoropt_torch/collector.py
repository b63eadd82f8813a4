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
            with quick_collections():
                gc.enable()


@contextmanager
def quick_collections() -> Iterator[None]:
    """Inside, the collector looks at what is new only: with all that a program has imported it
    takes longer than some steps. What was there is old afterwards. In a program that has frozen
    objects, which would lose that, nothing changes."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
