"""What the runtime asks of the host that a rank runs on."""

from __future__ import annotations

from dataclasses import dataclass

from tensoropt_torch.runtime.host.memory import may_keep_memory
from tensoropt_torch.runtime.host.scheduling import favours_network


@dataclass(frozen=True)
class HostSettings:
    """Threads of the network have a larger share of the cores than those that compute; a
    process keeps the host's memory that it frees."""

    favours_network: bool
    keeps_memory: bool


def host_settings(device_type: str) -> HostSettings:
    """What ``AxisGroups`` asks for where devices of this type compute.

    Raises:
        TensorOptError: the environment asks for what is not permitted here.
    """
    return HostSettings(favours_network(device_type), device_type == "cpu" and may_keep_memory())
