"""How many bytes of gradients are summed at once."""

from __future__ import annotations

import statistics

from tensoropt_torch import _C
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.plan.settings import Settings
from tensoropt_torch.plan.space import collective_times

KIB, MIB = 2**10, 2**20
SIZES: tuple[int, ...] = tuple(MIB << power for power in range(6))  # from 1 MiB to 32 MiB
SMALL = (1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB)  # all-reduces that are nothing but latency
LATENCY_SHARE = 0.03


def bucket_bytes(settings: Settings) -> int:
    """The smallest of ``SIZES`` of which an all-reduce over all devices is latency to no more than
    ``LATENCY_SHARE``, or the largest: fewer bytes take more collectives, and the last bucket, for
    which nothing is left to compute beside it, is the shorter the fewer bytes it has. As
    ``settings`` have it where no all-reduce was measured.

    The latency is the median over ``SMALL``, and what the runtime adds to each collective.
    """
    everything = (1 << len(settings.mesh_axes)) - 1
    times = collective_times(settings)
    if not times.is_measured(_C.Collective.ALL_REDUCE, everything):
        return settings.bucket_bytes
    added_s = parse_cluster(settings.cluster, "settings").device.runtime.collective_s

    def time_s(num_bytes: int) -> float:
        alone_s: float = times.time_s(_C.Collective.ALL_REDUCE, everything, num_bytes)
        return added_s + alone_s

    latency_s = statistics.median(map(time_s, SMALL))
    enough = (size for size in SIZES if latency_s <= LATENCY_SHARE * time_s(size))
    return next(enough, SIZES[-1])
