"""Batch normalisation over the processes of a job, as one process computes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tensoropt_torch.errors import TensorOptError


@contextmanager
def sync_batch_norms_are_plain() -> Iterator[None]:
    """Inside, ``nn.SyncBatchNorm`` takes the statistics of what it is given, the batch of all
    processes, without exchanging them and on every device."""
    with patch.object(nn.SyncBatchNorm, "forward", _BatchNorm.forward):
        yield


@contextmanager
def batch_norms_as_calls(groups: int) -> Iterator[None]:
    """As ``sync_batch_norms_are_plain``, and layers with ``momentum=None``, whose running
    statistics are the averages of all batches, compute the weight of a batch by operators.
    PyTorch asks for its value, which no graph knows.

    Args:
        groups: into how many parts with statistics of their own batches are cut.
    """
    usual = _BatchNorm.forward

    def forward(self: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
        if not _averages_all(self):
            return usual(self, x)
        if groups > 1 and not isinstance(self, nn.SyncBatchNorm):
            raise TensorOptError(
                f"a {type(self).__name__} with momentum=None averages the statistics of whole "
                f"batches, which batch_norm_groups={groups} does not take; give it a momentum, "
                "or plan with batch_norm_groups=1"
            )
        return _averaging(self, x)

    with patch.object(_BatchNorm, "forward", forward), sync_batch_norms_are_plain():
        yield


def _averages_all(module: _BatchNorm) -> bool:
    kept = module.track_running_stats and module.num_batches_tracked is not None
    return kept and module.training and module.momentum is None


def _averaging(module: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
    mean, var, count = module.running_mean, module.running_var, module.num_batches_tracked
    assert mean is not None and var is not None and count is not None
    module._check_input_dim(x)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        count.add_(1)
        values, dims = x.to(mean.dtype), [0, *range(2, x.dim())]
        share = (1.0 / count).to(mean.dtype)
        mean.mul_(1 - share).add_(values.mean(dims) * share)
        var.mul_(1 - share).add_(values.var(dims) * share)
    return F.batch_norm(x, None, None, module.weight, module.bias, True, 0.0, module.eps)
