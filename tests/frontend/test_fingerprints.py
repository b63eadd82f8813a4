"""Equal computations have equal fingerprints, others have others."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tensoropt_torch.frontend import capture
from tests.distributed.models import gpt
from tests.frontend.training import Layer, batch, scaled


def fingerprint(body: Callable[..., Any], x: torch.Tensor) -> str:
    return capture(Layer(body), (x,)).fingerprint


def test_equal_computations_have_equal_fingerprints() -> None:
    base = fingerprint(scaled, batch(0))
    assert fingerprint(scaled, batch(1)) == base
    layer = Layer(scaled)
    nn.init.zeros_(layer.linear.weight)
    assert capture(layer, (batch(),)).fingerprint == base


def approximate(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(self.linear(x), approximate="tanh").mean()


def precise(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(self.linear(x), approximate="none").mean()


def clamped(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).clamp(0, 1).mean()


def clamped_wider(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).clamp(0, 2).mean()


def clamped_twice(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).clamp(0, 1).clamp(0, 1).mean()


def test_other_operators_shapes_and_literals_have_other_fingerprints() -> None:
    found = {
        fingerprint(scaled, batch()),
        fingerprint(scaled, torch.cat([batch(), batch()])),
        fingerprint(clamped_twice, batch()),
        fingerprint(clamped, batch()),
        fingerprint(clamped_wider, batch()),
        capture(Layer(scaled), (batch(), 2.0)).fingerprint,
        capture(Layer(scaled).double(), (batch().double(),)).fingerprint,
    }
    assert len(found) == 7


def test_other_keyword_arguments_have_other_fingerprints() -> None:
    assert fingerprint(approximate, batch()) != fingerprint(precise, batch())


def test_frozen_parameters_have_another_fingerprint() -> None:
    """Their strategies differ: no gradients, no optimizer state."""
    frozen = Layer(scaled)
    frozen.linear.weight.requires_grad_(False)
    assert capture(frozen, (batch(),)).fingerprint != fingerprint(scaled, batch())


def test_meta_and_real_models_have_the_same_fingerprint() -> None:
    """A plan made on the meta device runs with real parameters."""

    def build(device: str) -> str:
        with torch.device(device):
            case = gpt()
            batch = tuple(torch.zeros(8, 8, dtype=torch.long) for _ in range(2))
        return capture(case.model, batch).fingerprint

    assert build("meta") == build("cpu")


def test_targets_on_the_meta_device_need_no_gradient() -> None:
    """Export marks them where mse_loss is decomposed."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(self.layer(x), y)

    found = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            found.append(capture(Model(), (torch.zeros(2, 4), torch.zeros(2, 4))))
    real, meta = found
    assert real.fingerprint == meta.fingerprint
    assert not any(source.placeholder.meta["val"].requires_grad for source in meta.inputs)
