"""Descriptions of the devices at hand: what CUDA or the operating system tells of them,
and a preset where there is one."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from tensoropt_torch.config.cluster import (
    Cluster,
    Device,
    DType,
    Efficiency,
    Level,
)
from tensoropt_torch.config.presets import list_presets, load_cluster

# Names that CUDA gives to the devices of the presets, whole: an "H100 PCIe" or a slice of
# an H100 is another device.
PRESETS_BY_NAME: Mapping[str, str] = {
    r"NVIDIA H200": "h200-8",
    r"NVIDIA H100 80GB HBM3": "h100-8",
    r"(NVIDIA )?A100-SXM4-40GB": "a100-40gb-8",
    r"(NVIDIA )?A100-SXM4-80GB": "a100-80gb-8",
    r"NVIDIA L40S": "l40s-8",
    r"NVIDIA GeForce RTX 4090": "rtx4090-4",
    r"NVIDIA B200": "b200-8",
}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What CUDA tells of a device (``cudaDeviceProp``); clocks are None where this version
    of PyTorch does not pass them on.

    Attributes:
        name: such as ``NVIDIA A10``.
        memory_bytes: all of the device's memory.
        multiprocessors: how many it has.
        capability: compute capability, major and minor.
        clock_hz: of the multiprocessors, at most.
        memory_clock_hz: of the memory, which moves data twice in a cycle.
        memory_bus_bits: how wide it is.
    """

    name: str
    memory_bytes: int
    multiprocessors: int
    capability: tuple[int, int]
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    memory_bus_bits: int | None = None


class _Architecture(NamedTuple):
    """Operations of a multiprocessor in a cycle, where a multiplication with an addition
    counts as two; ``half`` are products of float16 (and bfloat16, from 8.0 on) on tensor
    cores, dense, with sums in float32. ``bandwidth`` in bytes/s is assumed where CUDA does
    not tell the memory's clock; ``link`` is PCIe x16 in each direction."""

    float64: int
    float32: int
    half: int
    bandwidth: float
    link: float


# By compute capability. Sources: CUDA C++ Programming Guide, throughput of arithmetic
# instructions; NVIDIA's papers of the architectures (V100, Turing, A100, GA102, Ada, H100,
# Blackwell) for tensor cores.
_ARCHITECTURES: Mapping[tuple[int, int], _Architecture] = {
    (6, 0): _Architecture(64, 128, 256, 732e9, 16e9),
    (6, 1): _Architecture(8, 256, 256, 480e9, 16e9),
    (7, 0): _Architecture(64, 128, 1024, 900e9, 16e9),
    (7, 5): _Architecture(4, 128, 1024, 320e9, 16e9),
    (8, 0): _Architecture(64, 128, 2048, 1555e9, 32e9),
    (8, 6): _Architecture(4, 256, 1024, 600e9, 32e9),
    (8, 9): _Architecture(4, 256, 1024, 864e9, 32e9),
    (9, 0): _Architecture(128, 256, 4096, 3350e9, 64e9),
    (10, 0): _Architecture(128, 256, 8192, 8000e9, 64e9),
    (12, 0): _Architecture(4, 256, 1024, 1500e9, 64e9),
}

ASSUMED_CLOCK_HZ = 1.5e9
NETWORK_BYTES_PER_S = 25e9  # of a machine, assumed
BFLOAT16_SINCE = (8, 0)
# GeForce devices add products of half precision in float32 at half the rate.
HALVED_SINCE = (7, 5)
# CUDA tells a little less or more than the data sheet; a slice of a device is less.
LEAST_SHARE_OF_PRESET = 0.85


def cluster_of_gpu(gpu: Gpu, per_machine: int = 1, machines: int = 1) -> Cluster:
    """The preset of a GPU, or a description that is derived from what CUDA tells, with a
    warning that says so.

    Args:
        gpu: what CUDA tells.
        per_machine: devices in a machine, of a description that is derived.
        machines: likewise, how many of them.
    """
    for pattern, preset in PRESETS_BY_NAME.items():
        if re.fullmatch(pattern, gpu.name):
            cluster = load_cluster(preset)
            if gpu.memory_bytes >= LEAST_SHARE_OF_PRESET * cluster.device.memory_bytes:
                return cluster
    device = _derived_device(gpu)
    warnings.warn(_derived_text(device), stacklevel=2)
    levels = [_pcie(gpu, per_machine)]
    if machines > 1:
        levels.insert(0, _network(machines))
    return Cluster(
        f"derived for {gpu.name}", f"{gpu.name}, as CUDA describes it", device, tuple(levels)
    )


def cluster_of_cpus(memory_bytes: int, processes: int, source: str) -> Cluster:
    """The preset ``cpu`` with the machine's memory, which its processes share.

    Args:
        memory_bytes: what the processes may use together.
        processes: of this job on the machine.
        source: where the number is from.
    """
    cluster = load_cluster("cpu")
    share = memory_bytes // processes
    text = f"memory: {memory_bytes / 1e9:.2f} GB ({source}) shared by {processes} processes"
    device = dataclasses.replace(
        cluster.device, memory_bytes=share, source=f"{text}; others {cluster.device.source}"
    )
    return dataclasses.replace(cluster, device=device)


def _architecture(capability: tuple[int, int]) -> _Architecture:
    """That of the capability, else of the nearest lower one that is known."""
    lower = [known for known in _ARCHITECTURES if known <= capability]
    return _ARCHITECTURES[max(lower, default=min(_ARCHITECTURES))]


def _derived_device(gpu: Gpu) -> Device:
    figures = _architecture(gpu.capability)
    cycles_per_s = gpu.multiprocessors * (gpu.clock_hz or ASSUMED_CLOCK_HZ)
    halved = "GeForce" in gpu.name and gpu.capability >= HALVED_SINCE
    half = figures.half * cycles_per_s / (2 if halved else 1)
    flops: dict[DType, float] = {
        "float64": figures.float64 * cycles_per_s,
        "float32": figures.float32 * cycles_per_s,
        "float16": half,
    }
    if gpu.capability >= BFLOAT16_SINCE:
        flops["bfloat16"] = half
    bandwidth = figures.bandwidth
    if gpu.memory_clock_hz and gpu.memory_bus_bits:
        bandwidth = 2 * gpu.memory_clock_hz * gpu.memory_bus_bits / 8
    return Device(
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        memory_bandwidth_bytes_per_s=bandwidth,
        launch_overhead_s=5e-6,
        flops_per_s=flops,
        efficiency=Efficiency(0.6, 0.8, "assumed, not measured"),
        source=_source(gpu),
    )


def _source(gpu: Gpu) -> str:
    major, minor = gpu.capability
    clock = "told by CUDA" if gpu.clock_hz else f"assumed as {ASSUMED_CLOCK_HZ / 1e9:g} GHz"
    bandwidth = (
        "from the clock and the width of the memory"
        if gpu.memory_clock_hz and gpu.memory_bus_bits
        else f"assumed for compute capability {major}.{minor}"
    )
    return (
        f"derived: memory told by CUDA, peaks from {gpu.multiprocessors} multiprocessors of "
        f"compute capability {major}.{minor} with a clock {clock}, memory bandwidth {bandwidth}; "
        "launch overhead assumed"
    )


def _derived_text(device: Device) -> str:
    rates = ", ".join(f"{rate / 1e12:.3g} TFLOP/s in {dtype}" for dtype, rate in _rates(device))
    return (
        f"there is no cluster preset for '{device.name}'; derived from what CUDA tells: "
        f"{device.memory_bytes / 1e9:.3g} GB, "
        f"{device.memory_bandwidth_bytes_per_s / 1e9:.4g} GB/s, {rates}, devices joined by "
        "PCIe. To do better measure them (tensoropt profile-hardware, under torchrun), or give "
        f"cluster= the path of a cluster file or one of {', '.join(list_presets())}"
    )


def _rates(device: Device) -> list[tuple[str, float]]:
    return sorted(device.flops_per_s.items(), key=lambda item: item[1])


def _pcie(gpu: Gpu, per_machine: int) -> Level:
    return Level(
        name="pcie",
        count=per_machine,
        bandwidth_bytes_per_s=_architecture(gpu.capability).link,
        latency_s=10e-6,
        source="assumed: PCIe x16 of the generation of the device, no NVLink; latency assumed",
    )


def _network(machines: int) -> Level:
    return Level(
        name="network",
        count=machines,
        bandwidth_bytes_per_s=NETWORK_BYTES_PER_S,
        latency_s=20e-6,
        source="assumed: 200 Gb/s for each machine; latency assumed",
    )
