"""The machines of a job."""

from __future__ import annotations

import socket
from typing import Any

import torch.distributed as dist


def hosts_of_ranks() -> list[str]:
    """The host name of each rank, or of the single process. Collective."""
    hosts: list[Any] = [socket.gethostname()]
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        hosts = [None] * dist.get_world_size()
        dist.all_gather_object(hosts, socket.gethostname())
    return hosts
