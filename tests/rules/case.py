"""One call of an operator, as data; the ``*_cases.py`` files list them."""

import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.rules.call import TOLERANCES, Checks, overload_of

__all__ = [
    "Case",
    "Checks",
    "Random",
    "booleans",
    "integers",
    "overload_of",
    "positive",
    "real",
    "turned",
    "weights",
]

# Everything is computed in float64.
TOLERANCE = TOLERANCES[torch.float64]


@dataclass(frozen=True)
class Random:
    """A tensor to be drawn: numbers in [low, high)."""

    shape: tuple[int, ...]
    low: float
    high: float
    dtype: torch.dtype
    requires_grad: bool = False

    def draw(self, random: torch.Generator) -> torch.Tensor:
        """The tensor."""
        if self.dtype.is_complex:
            parts = (replace(self, dtype=torch.float64, requires_grad=False) for _ in "ri")
            drawn = torch.complex(*(part.draw(random) for part in parts))
            return drawn.requires_grad_(self.requires_grad)
        if self.dtype.is_floating_point:
            unit = torch.rand(self.shape, generator=random, dtype=self.dtype)
            drawn = self.low + (self.high - self.low) * unit
            return drawn.requires_grad_(self.requires_grad)
        low, high = int(self.low), int(self.high)
        whole = torch.randint(low, high, self.shape, generator=random)
        return whole.to(self.dtype)


def real(*shape: int) -> Random:
    return Random(shape, -2, 2, torch.float64, requires_grad=True)


def turned(*shape: int) -> Random:
    """Complex numbers."""
    return Random(shape, -2, 2, torch.complex128, requires_grad=True)


def positive(*shape: int) -> Random:
    return Random(shape, 0.5, 2, torch.float64, requires_grad=True)


def fraction(*shape: int) -> Random:
    return Random(shape, 0.1, 0.9, torch.float64, requires_grad=True)


def weights(*shape: int) -> Random:
    """Positive numbers that need no gradient."""
    return Random(shape, 0.5, 2, torch.float64)


def integers(high: int, *shape: int) -> Random:
    return Random(shape, 0, high, torch.int64)


def booleans(*shape: int) -> Random:
    return Random(shape, 0, 2, torch.bool)


@dataclass(frozen=True)
class Case:
    """One call of an operator; ``Random`` stands for a tensor argument.

    Only the first ``used`` outputs have users, if that is given.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    tolerance: float = TOLERANCE
    checks: Checks = Checks.VALUES
    used: int | None = None

    def __str__(self) -> str:
        return f"{self.target}: {self.name}" if self.name else self.target

    @property
    def overload(self) -> Any:
        """The operator."""
        return overload_of(self.target)

    def draw(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with tensors; the same for equal cases."""
        random = torch.Generator().manual_seed(zlib.crc32(str(self).encode()))
        args, kwargs = pytree.tree_map(
            lambda leaf: leaf.draw(random) if isinstance(leaf, Random) else leaf,
            (self.args, self.kwargs),
        )
        return args, kwargs
