"""Where a call is made: whether gradients are on, and what ``torch.autocast`` casts to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

import torch

_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True)
class Surroundings:
    """State of PyTorch that a call of Python finds."""

    gradients: bool
    autocast: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def here(cls) -> Self:
        """Of the caller."""
        casts = tuple(
            (device, torch.get_autocast_dtype(device))
            for device in _DEVICE_TYPES
            if torch.is_autocast_enabled(device)
        )
        return cls(torch.is_grad_enabled(), casts)

    @contextmanager
    def again(self) -> Iterator[None]:
        """As they were; gradients stay off where they are."""
        if self.gradients and not self.autocast:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.gradients and torch.is_grad_enabled()))
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype))
            yield
