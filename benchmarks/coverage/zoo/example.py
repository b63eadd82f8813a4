"""One training step of a small model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Example:
    """A module, its example arguments, and a loss function if it has none.

    ``precision`` is the dtype in which runs are compared: float64, but for models
    that refuse it or choose another one themselves. ``tolerance`` is the largest
    relative difference allowed, if not that of the precision.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss_fn: Callable[..., torch.Tensor] | None = None
    targets: tuple[torch.Tensor, ...] = ()
    precision: torch.dtype = torch.float64
    tolerance: float | None = None

    @property
    def keywords(self) -> dict[str, Any]:
        """What ``capture`` takes beside the module and its positional arguments."""
        return {"kwargs": self.kwargs, "loss_fn": self.loss_fn, "targets": self.targets}

    def output(self) -> Any:
        """What the module returns, or what the loss function makes of it."""
        output = self.model(*self.args, **self.kwargs)
        return output if self.loss_fn is None else self.loss_fn(output, *self.targets)


Build = Callable[[], Example]
