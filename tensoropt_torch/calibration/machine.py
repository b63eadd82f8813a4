"""What the running job's measurements are good for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import torch

from tensoropt_torch.profiler.store import MachineKey, machine_key
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.host import host_settings


def key_of_job(device: torch.device, axes: Sequence[int]) -> MachineKey:
    """The hardware and software of the running job, on a mesh with axes of these sizes.
    Collective.

    Raises:
        TensorOptError: on every rank, if the environment asks the host of one for what is
            not permitted there.
    """
    host = on_all_ranks(lambda: host_settings(device.type))
    return machine_key(device, tuple(axes), **asdict(host))
