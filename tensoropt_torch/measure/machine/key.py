"""What measurements are good for: the hardware and software that they were made on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from tensoropt_torch.config.records import Record
from tensoropt_torch.measure.machine.hosts import hosts_of_ranks
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.host import host_settings


@dataclass(frozen=True)
class MachineKey(Record):
    """The hardware and software of a job: measurements are good for equal ones only.

    ``cores`` are those that a process may use, ``threads`` what it uses for one
    operator; ``axes`` the sizes of the mesh, outermost first; ``favours_network`` says that
    the threads of the network have a larger share of the cores than those that compute,
    ``keeps_memory`` that a process keeps the host's memory that it frees.
    """

    device: str
    device_type: str
    cores: int
    threads: int
    processes: int
    machines: int
    backend: str
    torch: str
    axes: tuple[int, ...]
    favours_network: bool = False
    keeps_memory: bool = False

    @property
    def digest(self) -> str:
        """A short name for it, equal for equal keys only."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: MachineKey) -> list[str]:
        """What is not equal, e.g. ``threads: 1 instead of 2``."""
        mine, its = asdict(self), asdict(other)
        return [
            f"{name}: {mine[name]} instead of {its[name]}"
            for name in mine
            if mine[name] != its[name]
        ]


def machine_key(
    device: torch.device, axes: tuple[int, ...], *, favours_network: bool, keeps_memory: bool
) -> MachineKey:
    """The key of the running job, which rank 0 speaks for. Collective."""
    distributed = dist.is_available() and dist.is_initialized()
    hosts = hosts_of_ranks()
    key = MachineKey(
        device=_device_name(device),
        device_type=device.type,
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        processes=len(hosts),
        machines=len(set(hosts)),
        backend=dist.get_backend() if distributed else "none",
        torch=torch.__version__,
        axes=axes,
        favours_network=favours_network,
        keeps_memory=keeps_memory,
    )
    holder = [key]
    if len(hosts) > 1:
        dist.broadcast_object_list(holder, 0)
    return holder[0]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def key_of_job(device: torch.device, axes: Sequence[int]) -> MachineKey:
    """The hardware and software of the running job, on a mesh with axes of these sizes.
    Collective.

    Raises:
        TensorOptError: on every rank, if the environment asks the host of one for what is
            not permitted there.
    """
    host = on_all_ranks(lambda: host_settings(device.type))
    return machine_key(device, tuple(axes), **asdict(host))
