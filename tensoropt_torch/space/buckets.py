"""How many bytes of gradients are summed at once."""

from __future__ import annotations

import statistics

from tensoropt_torch import _C
from tensoropt_torch.space.search_space import collective_times
from tensoropt_torch.space.settings import Settings

KIB, MIB = 2**10, 2**20
SIZES: tuple[int, ...] = tuple(MIB << power for power in range(6))  # from 1 MiB to 32 MiB
SMALL = (1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB)  # all-reduces that are nothing but latency
LATENCY_SHARE = 0.03


def bucket_bytes(settings: Settings) -> int:
    """The smallest of ``SIZES`` of which an all-reduce over all devices is latency to no more than
    ``LATENCY_SHARE``, or the largest: fewer bytes take more collectives, and the last bucket, for
    which nothing is left to compute beside it, is the shorter the fewer bytes it has. As
    ``settings`` have it where no all-reduce was measured.

    The latency is the median over ``SMALL``. What ranks wait for each other in a collective
    (``Runtime.collective_s``) is none: beside a bucket that is under way they compute.
    """
    everything = (1 << len(settings.mesh_axes)) - 1
    times = collective_times(settings)
    if not times.is_measured(_C.Collective.ALL_REDUCE, everything):
        return settings.bucket_bytes

    def time_s(num_bytes: int) -> float:
        seconds: float = times.time_s(_C.Collective.ALL_REDUCE, everything, num_bytes)
        return seconds

    latency_s = statistics.median(map(time_s, SMALL))
    enough = (size for size in SIZES if latency_s <= LATENCY_SHARE * time_s(size))
    return next(enough, SIZES[-1])
