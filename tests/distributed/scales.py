"""How far off a number may be: of the scale of its own tensor, or of what is summed up in it.

Sums that are taken in another order round otherwise. A tensor in which large terms cancel (a
gradient that is zero but for rounding, as that of the key bias of attention) is off by the
rounding of these terms, which are not seen in it. They are seen where the model is trained once
more with parameters that differ by rounding.

::

    one = moved(train, model, tolerance=1e-10)   # train(copy of model) gives tensors by name
    assert not list(one.differences(got))
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

# Parameters are moved by a part of the tolerance: what moves as far as they do, relative to
# its own scale, is allowed no more than the tolerance.
PART = 1e-3
SEEDS = (0, 1)

Tensors = Mapping[str, torch.Tensor]
Movements = Mapping[str, float]


@dataclass(frozen=True)
class Moved:
    """Tensors by name, and how far each moves when parameters move by rounding."""

    values: Tensors
    movements: Movements
    tolerance: float

    def allowed(self, name: str) -> float:
        """The largest difference of a tensor that rounding explains."""
        return max(self.tolerance * largest(self.values[name]), self.movements[name] / PART)

    def differences(self, got: Tensors) -> Iterator[str]:
        """What is off by more, in words."""
        if got.keys() != self.values.keys():
            yield f"only one has {sorted(got.keys() ^ self.values.keys())}"
            return
        for name, value in self.values.items():
            error = apart(got[name], value)
            if not error <= self.allowed(name):
                yield f"{name} is off by {error:.3g}; its largest element is {largest(value):.3g}"


def moved(train: Callable[[nn.Module], Tensors], model: nn.Module, tolerance: float) -> Moved:
    """What training a copy of the model gives. ``train`` has to draw the same numbers each time."""
    values = train(copy.deepcopy(model))
    movements = dict.fromkeys(values, 0.0)
    for seed in SEEDS:
        other = copy.deepcopy(model)
        _move(other, tolerance * PART, seed)
        for name, value in train(other).items():
            movements[name] = max(movements[name], apart(value, values[name]))
    return Moved(values, movements, tolerance)


def largest(tensor: torch.Tensor) -> float:
    """The largest absolute value; nan if there is one."""
    return float(_wide(tensor).abs().max()) if tensor.numel() else 0.0


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference; infinite for other shapes. True and false are one apart."""
    return largest(_wide(one) - _wide(other)) if one.shape == other.shape else math.inf


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In the widest type of numbers of its kind."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _move(model: nn.Module, by: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            factor = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            change = 1 + by * (2 * factor - 1)
            parameter.copy_((parameter.double() * change.to(parameter.device)).to(parameter.dtype))
