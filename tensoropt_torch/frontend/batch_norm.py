"""Batch normalisation over the processes of a job, as one process computes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def sync_batch_norms_are_plain() -> Iterator[None]:
    """Inside, ``nn.SyncBatchNorm`` takes the statistics of what it is given, the batch of all
    processes, without exchanging them and on every device."""
    with patch.object(nn.SyncBatchNorm, "forward", _BatchNorm.forward):
        yield
