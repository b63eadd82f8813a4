"""Activation checkpointing that a model asks for: export runs it, and leaves no trace of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint


class CheckpointCount:
    """How often ``torch.utils.checkpoint`` was called."""

    def __init__(self) -> None:
        self.calls = 0

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose calls are counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return function(*args, **kwargs)

        return counted


class _Reentrant:
    """In the place of ``CheckpointFunction``, whose autograd function export cannot take."""

    def __init__(self, count: CheckpointCount) -> None:
        self.apply = count.counting(lambda function, _, *args: function(*args))


@contextmanager
def checkpoints_counted() -> Iterator[CheckpointCount]:
    """Counts calls, of both kinds, wherever the model has got the function from."""
    count = CheckpointCount()
    generator = "_checkpoint_without_reentrant_generator"
    before = {name: getattr(checkpoint, name) for name in (generator, "CheckpointFunction")}
    setattr(checkpoint, generator, count.counting(before[generator]))
    checkpoint.CheckpointFunction = _Reentrant(count)  # type: ignore[misc, assignment]
    try:
        yield count
    finally:
        for name, value in before.items():
            setattr(checkpoint, name, value)
