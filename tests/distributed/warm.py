"""What the server that ranks are forked from has imported, and has run once, so that no rank has
to: PyTorch's capture alone imports 700 modules when it is first called, and the package finds its
own 500 when they are asked for."""

from __future__ import annotations

import importlib
import pkgutil

import lightning.pytorch
import pytest
import torch
import torch.distributed.tensor
import transformers
from torch import nn

import tensoropt_torch
from tensoropt_torch.frontend import capture

# Each is there after its first use only.
PRELOADED = (
    *(pytest, torch.distributed.tensor, lightning.pytorch, transformers.Trainer),
    *(
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(tensoropt_torch.__path__, "tensoropt_torch.")
        if not module.name.endswith((".__main__", ".libtensoropt_ops"))
    ),
)

capture(nn.Linear(2, 2), (torch.ones(2, 2),), loss_fn=lambda y: y.sum())
