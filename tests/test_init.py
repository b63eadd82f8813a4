"""Joining a job whose other processes do not come."""

from __future__ import annotations

import pytest
import torch.distributed as dist

import tensoropt_torch
from tensoropt_torch import TensorOptError
from tests.distributed.harness import free_port


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_do_not_come_are_one_clear_error(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_PORT": free_port()}
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    words = rf"not all 2 processes of the job joined it within 1 s \(rank {rank}: "
    with pytest.raises(TensorOptError, match=words) as error:
        tensoropt_torch.init(backend="gloo", timeout_s=1.0)
    assert "\n" not in str(error.value)
    assert not dist.is_initialized()
