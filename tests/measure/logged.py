"""What the library says in its log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tensoropt_torch.logs import LIBRARY


@contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """The warnings that this process has logged since then."""
    messages: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    listener, library = Listener(logging.WARNING), logging.getLogger(LIBRARY)
    library.addHandler(listener)
    try:
        yield messages
    finally:
        library.removeHandler(listener)
