"""Clusters: what a device can do and what joins the devices.

A cluster is described by a TOML file, so that planning needs neither the cluster
nor a GPU::

    name = "h100-2x8"
    description = "2 machines with 8 H100 each"

    [device]
    name = "H100 SXM 80 GB"
    memory_bytes = 80_000_000_000
    memory_bandwidth_bytes_per_s = 3.35e12
    launch_overhead_s = 5e-6
    source = "data sheet; launch overhead assumed"

    type = "cuda"  # optional: "cuda" or "cpu"
    power_w = 700  # optional: what a device that trains draws
    price_per_hour = 2.5  # optional: of one device, in any currency
    price_source = "our contract of 2026"  # optional
    price_currency = "EUR"  # optional

    [device.flops_per_s]  # peak for each dtype
    float32 = 67e12
    bfloat16 = 989e12

    [device.efficiency]  # optional: share of the peak that is achieved
    matmul = 0.7
    memory = 0.8
    attention = 0.3  # optional: of fused attention; without it that of matmul
    source = "assumed"

    [[levels]]  # outermost first: joins 2 machines
    name = "network"
    count = 2
    bandwidth_bytes_per_s = 400e9  # one machine's link into the network
    latency_s = 10e-6
    source = "data sheet; latency assumed"

    [[levels]]  # innermost last: joins 8 devices
    name = "nvlink"
    count = 8
    bandwidth_bytes_per_s = 450e9  # one device's link, per direction
    latency_s = 5e-6
    source = "data sheet; latency assumed"

    [levels.collectives.all_to_all]  # optional: what this collective reaches there
    bandwidth_bytes_per_s = 300e9
    latency_s = 9e-6
    source = "measured with another program"

``levels[i].count`` units of level ``i + 1`` (devices, for the innermost) form one
unit of level ``i``. ``levels[i].bandwidth_bytes_per_s`` is the link of one such
unit into level ``i``, shared by all devices of the unit. Collectives without figures
of their own take those of the level.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from tensoropt_torch.config.preset_names import larger_preset
from tensoropt_torch.config.records import (
    Count,
    Finite,
    Fraction,
    Hint,
    NotNegative,
    OneOrMore,
    Positive,
    Record,
    Share,
    Text,
    given_with,
    parse_record,
)
from tensoropt_torch.errors import TensorOptError

DType = Literal["float64", "float32", "bfloat16", "float16"]
DeviceType = Literal["cpu", "cuda"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

_Seconds = Annotated[NotNegative, Hint("give seconds, such as 2e-5")]
_Bandwidth = Annotated[Positive, Hint("give bytes per second of one unit's link")]
_Latency = Annotated[NotNegative, Hint("give seconds, such as 5e-6")]
_Achieved = Annotated[Share, Hint("give the share of the peak that is achieved, such as 0.7")]
_Waited = Annotated[
    Fraction, Hint("give the share of the time that a step waits for: 1 for all of it")
]
_Flops = Annotated[Positive, Hint("give operations per second, such as 67e12")]


@dataclasses.dataclass(frozen=True)
class Efficiency(Record):
    """Shares of the peak figures that real kernels achieve, in (0, 1]. ``attention`` is that of
    fused attention; None: it achieves what matrix products do."""

    matmul: _Achieved = 1.0
    memory: _Achieved = 1.0
    source: Text = "not given: peak figures are used as they are"
    attention: _Achieved | None = None


@dataclasses.dataclass(frozen=True)
class Update(Record):
    """One trained parameter in a step, with an optimizer that keeps
    ``state_factor`` bytes for each of its bytes: s, and more s for each byte."""

    state_factor: Annotated[NotNegative, Hint("give 2 for Adam, 0 for plain SGD")]
    parameter_s: _Seconds
    s_per_byte: Annotated[Positive, Hint("give seconds for each byte, such as 1e-9")]


@dataclasses.dataclass(frozen=True)
class Exposed(Record):
    """Shares of the times of reshards that a step waits for if they run while the device
    computes, from 0 to 1: of parameters in forward, and of their gradients."""

    parameters: _Waited
    gradients: _Waited

    @property
    def hides_something(self) -> bool:
        """Whether a step is faster for it."""
        return min(self.parameters, self.gradients) < 1


@dataclasses.dataclass(frozen=True)
class Runtime(Record):
    """What the runtime takes besides kernels and collectives: of one reshard in each
    pass, in s; of one collective, in addition to what it takes between ranks that do
    nothing else; of the updates of parameters, by optimizer. What is ``exposed`` of
    reshards that overlap with computing is None where nobody has measured it."""

    reshard_s: _Seconds = 0.0
    collective_s: Annotated[Finite, Hint("give seconds, such as 2e-5")] = 0.0
    updates: tuple[Update, ...] = ()
    source: Text = "not given: reshards as described, updates by the device's figures"
    exposed: Exposed | None = None

    def update(self, state_factor: float) -> Update | None:
        """That of optimizers with so much state."""
        found = [update for update in self.updates if update.state_factor == state_factor]
        return found[0] if found else None


@dataclasses.dataclass(frozen=True)
class Device(Record):
    """One device: capacity in bytes, peaks in bytes/s and flops/s by dtype, and,
    if known, power in W and price per hour. The simulation of memory has to know its
    ``type``. ``launch_overhead_s`` is what an operator takes on the device at least, and
    ``host_launch_s`` what the host needs to call one, while the device computes; 0: the
    host is never late."""

    name: Text
    memory_bytes: Annotated[Count, Hint("give one device's capacity, such as 80_000_000_000")]
    memory_bandwidth_bytes_per_s: Annotated[
        Positive, Hint("give bytes per second, such as 3.35e12")
    ]
    launch_overhead_s: Annotated[NotNegative, Hint("give seconds per operator, such as 5e-6")]
    flops_per_s: Annotated[Mapping[DType, _Flops], Field(min_length=1)] = dataclasses.field(
        hash=False
    )
    source: Text
    host_launch_s: Annotated[NotNegative, Hint("give seconds per operator, such as 13e-6")] = 0.0
    efficiency: Annotated[Efficiency, given_with("matmul", "memory", "source")] = Efficiency()
    runtime: Annotated[Runtime, given_with("reshard_s", "source")] = Runtime()
    power_w: Annotated[Positive, Hint("give watts, such as 700")] | None = None
    price_per_hour: Annotated[Positive, Hint("give the price of an hour, such as 2.5")] | None = (
        None
    )
    price_source: Text | None = None
    price_currency: Text | None = None
    type: DeviceType = "cuda"


@dataclasses.dataclass(frozen=True)
class LinkSpeed(Record):
    """What a collective reaches over a link of a level."""

    bandwidth_bytes_per_s: _Bandwidth
    latency_s: _Latency
    source: Text


@dataclasses.dataclass(frozen=True)
class Level(Record):
    """One level of the interconnect: joins ``count`` units of the next level.
    ``collectives`` are those that reach other figures than the level's own."""

    name: Text
    count: Annotated[Count, Hint("give how many units of the next level it joins")]
    bandwidth_bytes_per_s: _Bandwidth
    latency_s: _Latency
    source: Text
    collectives: Mapping[Collective, LinkSpeed] = dataclasses.field(
        default_factory=dict, hash=False
    )


@dataclasses.dataclass(frozen=True)
class Cluster(Record):
    """A description of devices and of the levels that join them, outermost first."""

    name: Text
    description: Text
    device: Device
    levels: OneOrMore[Level]

    @property
    def num_devices(self) -> int:
        """How many devices the cluster has."""
        return math.prod(level.count for level in self.levels)

    def to_dict(self) -> dict[str, Any]:
        """The description as plain values, in the shape of the TOML file."""
        result = dataclasses.asdict(self)
        device = result["device"]
        result["device"] = {key: value for key, value in device.items() if value is not None}
        result["levels"] = list(result["levels"])
        if result["device"]["efficiency"]["attention"] is None:
            del result["device"]["efficiency"]["attention"]
        runtime = result["device"]["runtime"]
        runtime["updates"] = list(runtime["updates"])
        if runtime["exposed"] is None:
            del runtime["exposed"]
        return result


def parse_cluster(data: Mapping[str, Any], where: str) -> Cluster:
    """Builds a cluster from the content of a TOML file, or from ``to_dict()``.

    Args:
        data: the tables and values.
        where: what messages call the source, for example ``"file 'my.toml'"``.

    Raises:
        TensorOptError: a key is missing or unknown, or a value is not allowed.

    """
    return parse_record(Cluster, data, where)


def mesh_axes(cluster: Cluster, num_devices: int) -> list[tuple[int, int]]:
    """Lays ``num_devices`` out on the cluster, innermost level first.

    Returns ``(size, level index)`` for each mesh axis, outermost to innermost;
    sizes are the prime factors (ascending inside a level), level 0 is the
    outermost. On two machines of 8 devices 4 devices give
    ``[(2, 1), (2, 1)]`` and 16 give ``[(2, 0), (2, 1), (2, 1), (2, 1)]``.

    Raises:
        TensorOptError: the cluster has fewer devices, or some units of a level
            would be filled only in part while others are full.

    """
    allowed = device_counts(cluster)
    if num_devices not in allowed:
        raise TensorOptError(
            f"cluster '{cluster.name}' cannot lay out {num_devices} devices: "
            f"allowed are {_ranges(allowed)} (units of a level are filled "
            f"completely before a second one is used); choose one of these or "
            f"{_another(cluster, num_devices)}"
        )
    axes: list[tuple[int, int]] = []
    remaining = num_devices
    for index in reversed(range(len(cluster.levels))):
        used = min(remaining, cluster.levels[index].count)
        axes = [(prime, index) for prime in _prime_factors(used)] + axes
        remaining //= used
    return axes


def _another(cluster: Cluster, num_devices: int) -> str:
    """What to try for devices that the cluster does not have."""
    larger = None
    if isinstance(num_devices, int) and num_devices > cluster.num_devices:
        larger = larger_preset(cluster.name, num_devices)
    if larger is None:
        return "describe another cluster"
    return f"another cluster, such as cluster='{larger}'"


def device_counts(cluster: Cluster) -> list[int]:
    """The numbers of devices that ``mesh_axes`` can lay out, ascending."""
    counts = {1}
    unit = 1
    for level in reversed(cluster.levels):
        counts.update(unit * used for used in range(1, level.count + 1))
        unit *= level.count
    return sorted(counts)


def _ranges(numbers: list[int]) -> str:
    """Sorted numbers with runs shortened: ``1 to 8, 16``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def _prime_factors(number: int) -> list[int]:
    factors = []
    prime = 2
    while number > 1:
        while number % prime == 0:
            factors.append(prime)
            number //= prime
        prime += 1
    return factors
