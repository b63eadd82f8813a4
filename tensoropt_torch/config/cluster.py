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

    [device.flops_per_s]  # peak for each dtype
    float32 = 67e12
    bfloat16 = 989e12

    [device.efficiency]  # optional: share of the peak that is achieved
    matmul = 0.7
    memory = 0.8
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
import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, get_args

from tensoropt_torch.config.reader import TableReader
from tensoropt_torch.errors import TensorOptError, close_match

DTYPES = ("float64", "float32", "bfloat16", "float16")
DeviceType = Literal["cpu", "cuda"]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """Shares of the peak figures that real kernels achieve, in (0, 1]."""

    matmul: float = 1.0
    memory: float = 1.0
    source: str = "not given: peak figures are used as they are"


@dataclasses.dataclass(frozen=True)
class Update:
    """One trained parameter in a step, with an optimizer that keeps
    ``state_factor`` bytes for each of its bytes: s, and more s for each byte."""

    state_factor: float
    parameter_s: float
    s_per_byte: float


@dataclasses.dataclass(frozen=True)
class Exposed:
    """Shares of the times of reshards that a step waits for if they run while the device
    computes, from 0 to 1: of parameters in forward, and of their gradients."""

    parameters: float
    gradients: float

    @property
    def hides_something(self) -> bool:
        """Whether a step is faster for it."""
        return min(self.parameters, self.gradients) < 1


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What the runtime takes besides kernels and collectives: of one reshard in each
    pass, in s; of one collective, in addition to what it takes between ranks that do
    nothing else; of the updates of parameters, by optimizer. What is ``exposed`` of
    reshards that overlap with computing is None where nobody has measured it."""

    reshard_s: float = 0.0
    collective_s: float = 0.0
    updates: tuple[Update, ...] = ()
    source: str = "not given: reshards as described, updates by the device's figures"
    exposed: Exposed | None = None

    def update(self, state_factor: float) -> Update | None:
        """That of optimizers with so much state."""
        found = [update for update in self.updates if update.state_factor == state_factor]
        return found[0] if found else None


@dataclasses.dataclass(frozen=True)
class Device:
    """One device: capacity in bytes, peaks in bytes/s and flops/s by dtype, and,
    if known, power in W and price per hour. The simulation of memory has to know its
    ``type``."""

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    launch_overhead_s: float
    flops_per_s: Mapping[str, float] = dataclasses.field(hash=False)
    efficiency: Efficiency
    source: str
    runtime: Runtime = Runtime()
    power_w: float | None = None
    price_per_hour: float | None = None
    price_source: str | None = None
    type: DeviceType = "cuda"


@dataclasses.dataclass(frozen=True)
class LinkSpeed:
    """What a collective reaches over a link of a level."""

    bandwidth_bytes_per_s: float
    latency_s: float
    source: str


@dataclasses.dataclass(frozen=True)
class Level:
    """One level of the interconnect: joins ``count`` units of the next level.
    ``collectives`` are those that reach other figures than the level's own."""

    name: str
    count: int
    bandwidth_bytes_per_s: float
    latency_s: float
    source: str
    collectives: Mapping[str, LinkSpeed] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A description of devices and of the levels that join them, outermost first."""

    name: str
    description: str
    device: Device
    levels: tuple[Level, ...]

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
        runtime = result["device"]["runtime"]
        runtime["updates"] = list(runtime["updates"])
        if runtime["exposed"] is None:
            del runtime["exposed"]
        return result


def list_presets() -> list[str]:
    """Names of the clusters that come with TensorOpt, sorted."""
    return sorted(_preset_files())


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Loads the preset of that name, or the TOML file at that path.

    Raises:
        TensorOptError: there is no such preset or file, or its content is wrong.

    """
    presets = _preset_files()
    if isinstance(name_or_path, str) and name_or_path in presets:
        return _load(presets[name_or_path], f"preset '{name_or_path}'")
    path = Path(name_or_path)
    if not path.is_file():
        hint = close_match(str(name_or_path), presets)
        raise TensorOptError(
            f"cluster '{name_or_path}' is neither a preset nor a file; {hint}"
            f"presets: {', '.join(sorted(presets))}; or give the path of a TOML file"
        )
    return _load(path, f"cluster file '{path}'")


def parse_cluster(data: Mapping[str, Any], where: str) -> Cluster:
    """Builds a cluster from the content of a TOML file, or from ``to_dict()``.

    Args:
        data: the tables and values.
        where: what messages call the source, for example ``"file 'my.toml'"``.

    Raises:
        TensorOptError: a key is missing or unknown, or a value is not allowed.

    """
    root = TableReader(data, where)
    cluster = Cluster(
        name=root.text("name"),
        description=root.text("description"),
        device=_parse_device(root.table("device")),
        levels=tuple(_parse_level(level) for level in root.tables("levels")),
    )
    root.finish()
    return cluster


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
            f"describe another cluster"
        )
    axes: list[tuple[int, int]] = []
    remaining = num_devices
    for index in reversed(range(len(cluster.levels))):
        used = min(remaining, cluster.levels[index].count)
        axes = [(prime, index) for prime in _prime_factors(used)] + axes
        remaining //= used
    return axes


def _preset_files() -> dict[str, Traversable]:
    folder = resources.files("tensoropt_torch") / "clusters"
    return {
        entry.name.removesuffix(".toml"): entry
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    }


def _load(file: Traversable, where: str) -> Cluster:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TensorOptError(f"{where} is not valid TOML: {error}") from error
    return parse_cluster(data, where)


def _parse_device(table: TableReader) -> Device:
    device = Device(
        name=table.text("name"),
        memory_bytes=table.integer(
            "memory_bytes", "give one device's capacity, such as 80_000_000_000"
        ),
        memory_bandwidth_bytes_per_s=table.positive(
            "memory_bandwidth_bytes_per_s", "give bytes per second, such as 3.35e12"
        ),
        launch_overhead_s=table.not_negative(
            "launch_overhead_s", "give seconds per operator, such as 5e-6"
        ),
        flops_per_s=_parse_flops(table.table("flops_per_s")),
        efficiency=_parse_efficiency(table.optional_table("efficiency")),
        source=table.text("source"),
        runtime=_parse_runtime(table.optional_table("runtime")),
        power_w=_optional(table, "power_w", "give watts, such as 700"),
        price_per_hour=_optional(table, "price_per_hour", "give the price of an hour, such as 2.5"),
        price_source=table.text("price_source") if table.has("price_source") else None,
        type=table.choice("type", get_args(DeviceType), "cuda"),
    )
    table.finish(also_allowed=["power_w", "price_per_hour", "price_source"])
    return device


def _optional(table: TableReader, key: str, hint: str) -> float | None:
    return table.positive(key, hint) if table.has(key) else None


def _parse_flops(table: TableReader) -> dict[str, float]:
    hint = "give operations per second, such as 67e12"
    flops = {dtype: table.positive(dtype, hint) for dtype in DTYPES if table.has(dtype)}
    table.finish(also_allowed=DTYPES)
    if not flops:
        raise table.error("is empty", f"at least one of {', '.join(DTYPES)}", hint)
    return flops


def _parse_efficiency(table: TableReader | None) -> Efficiency:
    if table is None:
        return Efficiency()
    hint = "give the share of the peak that is achieved, such as 0.7"
    efficiency = Efficiency(
        matmul=table.share("matmul", hint),
        memory=table.share("memory", hint),
        source=table.text("source"),
    )
    table.finish()
    return efficiency


def _parse_runtime(table: TableReader | None) -> Runtime:
    if table is None:
        return Runtime()
    hint = "give seconds, such as 2e-5"
    runtime = Runtime(
        reshard_s=table.not_negative("reshard_s", hint),
        collective_s=table.finite("collective_s", hint) if table.has("collective_s") else 0.0,
        updates=tuple(_parse_update(update) for update in table.optional_tables("updates")),
        exposed=_parse_exposed(table.optional_table("exposed")),
        source=table.text("source"),
    )
    table.finish()
    return runtime


def _parse_exposed(table: TableReader | None) -> Exposed | None:
    if table is None:
        return None
    hint = "give the share of the time that a step waits for: 1 for all of it"
    exposed = Exposed(
        parameters=table.fraction("parameters", hint), gradients=table.fraction("gradients", hint)
    )
    table.finish()
    return exposed


def _parse_update(table: TableReader) -> Update:
    update = Update(
        state_factor=table.not_negative("state_factor", "give 2 for Adam, 0 for plain SGD"),
        parameter_s=table.not_negative("parameter_s", "give seconds, such as 2e-5"),
        s_per_byte=table.positive("s_per_byte", "give seconds for each byte, such as 1e-9"),
    )
    table.finish()
    return update


def _parse_level(table: TableReader) -> Level:
    level = Level(
        name=table.text("name"),
        count=table.integer("count", "give how many units of the next level it joins"),
        bandwidth_bytes_per_s=_bandwidth(table),
        latency_s=_latency(table),
        source=table.text("source"),
        collectives=_parse_collectives(table.optional_table("collectives")),
    )
    table.finish()
    return level


def _parse_collectives(table: TableReader | None) -> dict[str, LinkSpeed]:
    if table is None:
        return {}
    speeds = {name: _parse_speed(table.table(name)) for name in COLLECTIVES if table.has(name)}
    table.finish(also_allowed=COLLECTIVES)
    return speeds


def _parse_speed(table: TableReader) -> LinkSpeed:
    speed = LinkSpeed(_bandwidth(table), _latency(table), table.text("source"))
    table.finish()
    return speed


def _bandwidth(table: TableReader) -> float:
    return table.positive("bandwidth_bytes_per_s", "give bytes per second of one unit's link")


def _latency(table: TableReader) -> float:
    return table.not_negative("latency_s", "give seconds, such as 5e-6")


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
