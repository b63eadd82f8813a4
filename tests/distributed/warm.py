"""What the server that ranks are forked from has imported, and has run once, so that no rank has
to: PyTorch's capture alone imports 700 modules when it is first called."""

from __future__ import annotations

import lightning.pytorch
import pytest
import torch
import torch.distributed.tensor
import transformers
from torch import nn

import tensoropt_torch.rules
from tensoropt_torch.frontend import capture

# Each is there after its first use only.
PRELOADED = (
    *(pytest, torch.distributed.tensor, lightning.pytorch, transformers.Trainer),
    tensoropt_torch.rules,
)

capture(nn.Linear(2, 2), (torch.ones(2, 2),), loss_fn=lambda y: y.sum())
