"""Optimizers by the names of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.tf_style.tensor import Tensor


class Optimizer:
    """What makes a training step of a loss."""

    # As planning knows it: how many state tensors a parameter has.
    kind = "sgd"

    def minimize(self, loss: Tensor) -> TrainOp:
        """The step that lowers ``loss``, a scalar. A graph has one.

        Raises:
            TensorOptError: the loss is no scalar, or the graph has a step already.
        """
        if loss.shape != ():
            raise TensorOptError(
                f"minimize: '{loss.name}' has shape {list(loss.shape)}, a loss is a scalar; use "
                "reduce_mean"
            )
        if loss.graph.train_op is not None:
            raise TensorOptError("the graph minimizes a loss already; add up both losses")
        train_op = loss.graph.train_op = TrainOp(loss, self)
        return train_op

    def make(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of PyTorch."""
        raise NotImplementedError


@dataclass(frozen=True)
class TrainOp:
    """A training step, to be passed to ``run``."""

    loss: Tensor
    optimizer: Optimizer


@dataclass(frozen=True)
class GradientDescentOptimizer(Optimizer):
    """Stochastic gradient descent."""

    learning_rate: float

    def make(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate)


@dataclass(frozen=True)
class MomentumOptimizer(Optimizer):
    """Gradient descent with a velocity."""

    learning_rate: float
    momentum: float
    use_nesterov: bool = False

    kind = "momentum"

    def make(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters, self.learning_rate, self.momentum, nesterov=self.use_nesterov
        )


@dataclass(frozen=True)
class AdamOptimizer(Optimizer):
    """Adam, as PyTorch computes it: ``epsilon`` is added after the bias correction."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    kind = "adam"

    def make(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.Adam(parameters, self.learning_rate, betas, self.epsilon)
