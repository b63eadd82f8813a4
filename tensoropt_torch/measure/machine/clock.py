"""The clock of measurements, and what repeated ones say."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from tensoropt_torch.measure.machine.hosts import hosts_of_ranks


def undisturbed_s(samples: Sequence[float]) -> float:
    """What something takes on a machine that does nothing else, from repeated
    measurements of it: the lower quartile.

    On a calm machine that is the median, less a part of the noise. What disturbs some of
    the measurements makes them longer, never shorter: the median moves with every one of
    them, and is wrong when they are half of all; the lower quartile bears with more. The
    minimum would say what happens once.
    """
    if len(samples) == 1:
        return samples[0]
    return statistics.quantiles(samples, n=4, method="inclusive")[0]


class SharedClock:
    """Times of a device, and what all ranks agree on. Its collective methods are those
    of a single process where no process group runs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.last_s = 0.0
        self._start = self.now()

    def now(self) -> float:
        """Seconds of a steady clock, when the work of the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def elapsed_s(self) -> float:
        """The longest time since construction on any rank. Collective."""
        self.last_s = self.slowest([self.now() - self._start])[0]
        return self.last_s

    def slowest(self, seconds: list[float]) -> list[float]:
        """The maximum over ranks of each number. Collective."""
        found: list[float] = self._of_all_ranks(seconds).amax(0).tolist()
        return found

    def mean(self, seconds: list[float]) -> list[float]:
        """The mean over ranks of each number. Collective."""
        found: list[float] = self._of_all_ranks(seconds).mean(0).tolist()
        return found

    def _of_all_ranks(self, numbers: list[float]) -> torch.Tensor:
        """(ranks, numbers) in float64: memory in bytes goes this way too."""
        own = torch.tensor([numbers], dtype=torch.float64, device=self.device)
        if not (dist.is_available() and dist.is_initialized()):
            return own
        every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own)
        return torch.cat(every)


class ComputeClock:
    """Times of work of this process alone, while all ranks compute.

    Where there are more processes that compute than cores, what is short finds a core free or
    waits for one, as it happens; in a step all of it takes as much longer as there are more
    processes. So there the work is told by the time of the processor that this thread takes,
    times ``crowding``. Then what the process waits for, such as other ranks, takes no time.

    Args:
        device: where the work is done.
        crowding: see ``crowding_of``.
    """

    def __init__(self, device: torch.device, crowding: float) -> None:
        self._wall = SharedClock(device)
        self._crowding = crowding

    @property
    def counts_waiting(self) -> bool:
        """Whether time goes on while the process waits."""
        return self._crowding <= 1

    def now(self) -> float:
        """Seconds of a clock that is steady while the process works."""
        return self._wall.now() if self.counts_waiting else self._crowding * time.thread_time()


def crowding_of(device: torch.device) -> float:
    """How many processes that compute there are for each core, on the machine with the most; 1
    on GPUs, and where an operator has several threads: how many of them work depends on the
    operator. Collective, and equal on all ranks."""
    if device.type != "cpu":
        return 1.0
    hosts = hosts_of_ranks()
    processes = hosts.count(socket.gethostname()) if torch.get_num_threads() == 1 else 0
    return SharedClock(device).slowest([max(1.0, processes / len(os.sched_getaffinity(0)))])[0]
