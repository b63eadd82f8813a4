"""Where the figures that a plan's costs are computed from come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensoropt_torch.config import Device, Level, parse_cluster
from tensoropt_torch.space.settings import Settings
from tensoropt_torch.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Origin:
    """Figures of one kind and where they are from; ``figures`` may be empty."""

    what: str
    figures: str
    source: str

    def __str__(self) -> str:
        return f"{self.what}: {self.source}"


def provenance(settings: Settings) -> list[Origin]:
    """For each kind of figure where it is from."""
    return list(_origins(settings))


def _origins(settings: Settings) -> Iterator[Origin]:
    cluster = parse_cluster(settings.cluster, "settings")
    device = cluster.device
    yield Origin(f"device '{device.name}'", _device_figures(device), device.source)
    efficiency = device.efficiency
    shares = [f"matmul {efficiency.matmul:.0%}", f"memory {efficiency.memory:.0%}"]
    if efficiency.attention is not None:
        shares.insert(1, f"attention {efficiency.attention:.0%}")
    yield Origin("efficiency", f"{', '.join(shares)} of the peak", efficiency.source)
    state = settings.optimizer_state_bytes
    yield Origin(
        "optimizer",
        "",
        f"{settings.optimizer}; bytes of state for each element: "
        f"{state['float32']:g} of float32 parameters, {state['bfloat16']:g} of bfloat16",
    )
    covered = sorted({axes for _, axes, _ in settings.measured})
    if covered:
        sets = 2 ** len(settings.mesh_axes) - 1
        source = f"measured over {len(covered)} of {sets} sets of mesh axes"
        yield Origin("collectives", f"{len(settings.measured)} curves", source)
    else:
        for index in sorted({level for _, level in settings.mesh_axes}):
            yield from _level_origins(cluster.levels[index])
    operators = len(settings.operators)
    measured = f"{operators} calls measured, others predicted from these"
    roofline = "computed from the device's figures (roofline)"
    yield Origin("operators", "", measured if operators else roofline)
    runtime = device.runtime
    figures = (
        f"{format_seconds(runtime.reshard_s)} a reshard, "
        f"{format_seconds(runtime.collective_s)} more a collective"
    )
    yield Origin("runtime", figures, runtime.source)
    if device.price_per_hour is not None:
        currency = device.price_currency or "of its currency"
        price = f"{device.price_per_hour:g} {currency} an hour and device"
        yield Origin("price", price, device.price_source or "source not given")


def _device_figures(device: Device) -> str:
    rates = ", ".join(f"{rate / 1e12:g} TFLOP/s in {d}" for d, rate in device.flops_per_s.items())
    host = device.host_launch_s
    late = f", {format_seconds(host)} of its host" if host else ""
    power = "" if device.power_w is None else f", {device.power_w:g} W"
    return (
        f"{format_bytes(device.memory_bytes)}, {device.memory_bandwidth_bytes_per_s / 1e9:g} GB/s, "
        f"{rates}, {format_seconds(device.launch_overhead_s)} an operator{late}{power}"
    )


def _level_origins(level: Level) -> Iterator[Origin]:
    computed = "computed from bandwidth and latency"
    yield Origin(
        f"collectives inside level '{level.name}'",
        _link(level.bandwidth_bytes_per_s, level.latency_s),
        f"{computed}: {level.source}",
    )
    for name, speed in level.collectives.items():
        yield Origin(
            f"{name} inside level '{level.name}'",
            _link(speed.bandwidth_bytes_per_s, speed.latency_s),
            f"{computed} of its own: {speed.source}",
        )


def _link(bandwidth_bytes_per_s: float, latency_s: float) -> str:
    return f"{bandwidth_bytes_per_s / 1e9:g} GB/s, {format_seconds(latency_s)}"
