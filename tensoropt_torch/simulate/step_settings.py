"""What a simulated step is like besides its plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from tensoropt_torch.config import DeviceType
from tensoropt_torch.planner.optimizer_model import OptimizerModel
from tensoropt_torch.simulate.stock_optimizers import MakeOptimizer, make_optimizer


@dataclass(frozen=True)
class StepSettings:
    """What a step is like besides the plan.

    Attributes:
        optimizer: a name (``sgd``, ``momentum``, ``adagrad``, ``rmsprop``, ``adam``,
            ``adamw``; PyTorch's default variant on the device), an ``OptimizerModel``,
            or a function that makes the optimizer of a list of parameters.
        device: the type of device that the plan is for, ``cpu`` or ``cuda``. Operators of
            the CPU stand in for those of a GPU.
        rank: whose memory is asked for.
        measure_workspaces: run kernels whose workspace no formula gives (of
            oneDNN, on CPUs) on a small batch and see what they allocate.
        compiled: the step is compiled as one graph (``parallelize(..., compile=True)``); of plans
            without stages and micro-batches. What kernels take besides their results is left out.
        gloo: on CPUs the process group is one of Gloo's, whose collectives allocate buffers.
    """

    optimizer: str | OptimizerModel | MakeOptimizer = "adamw"
    device: DeviceType = "cpu"
    rank: int = 0
    measure_workspaces: bool = True
    gloo: bool = True
    compiled: bool = False

    @staticmethod
    def on(device: torch.device, optimizer: str | OptimizerModel | MakeOptimizer) -> StepSettings:
        """A step on this device."""
        return StepSettings(optimizer, "cuda" if device.type == "cuda" else "cpu")

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of these parameters."""
        if callable(self.optimizer):
            return self.optimizer(parameters)
        return make_optimizer(self.optimizer, parameters, foreach=self.device == "cuda")


DEFAULT_STEP = StepSettings()
