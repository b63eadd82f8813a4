"""Perceptrons."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from benchmarks.coverage.zoo.data import NUM_DIGITS, digits
from benchmarks.coverage.zoo.example import Build, Example


def perceptron(outputs: int) -> nn.Module:
    """Digits of 64 points."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.GELU(), nn.Linear(48, outputs))


def mlp() -> Example:
    """A classifier."""
    images, classes = digits()
    return Example(perceptron(NUM_DIGITS), (images,), loss_fn=F.cross_entropy, targets=(classes,))


def mlp_mse() -> Example:
    """An autoencoder: the target is the input."""
    images, _ = digits()
    flat = images.flatten(1)
    return Example(perceptron(64), (flat,), loss_fn=F.mse_loss, targets=(flat,))


MODELS: dict[str, Build] = {"mlp": mlp, "mlp_mse": mlp_mse}
