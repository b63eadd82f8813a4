"""Descriptions of the devices at hand, from what CUDA and the system tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tensoropt_torch.config import (
    Gpu,
    cluster_of_cpus,
    cluster_of_gpu,
    load_cluster,
    machine_memory,
    mesh_axes,
    parse_cluster,
)

# What CUDA tells of devices whose data sheets are known, with the data sheet's bandwidth
# and peaks in float32 and in half precision.
A10 = Gpu("NVIDIA A10", 23_609_475_072, 72, (8, 6), 1.695e9, 6.251e9, 384)
V100 = Gpu("Tesla V100-SXM2-16GB", 16_935_682_048, 80, (7, 0), 1.53e9, 0.877e9, 4096)
H100_PCIE = Gpu("NVIDIA H100 PCIe", 85_028_765_696, 114, (9, 0), 1.755e9, 1.593e9, 5120)
RTX_3090 = Gpu("NVIDIA GeForce RTX 3090", 25_430_786_048, 82, (8, 6), 1.695e9, 9.751e9, 384)
DATA_SHEETS = [
    (A10, 600e9, 31.2e12, 125e12),
    (V100, 900e9, 15.7e12, 125e12),
    (H100_PCIE, 2.04e12, 51e12, 820e12),
    (RTX_3090, 936e9, 35.6e12, 71e12),
]

KNOWN = {
    "NVIDIA H200": "h200-8",
    "NVIDIA H100 80GB HBM3": "h100-8",
    "NVIDIA A100-SXM4-40GB": "a100-40gb-8",
    "A100-SXM4-80GB": "a100-80gb-8",
    "NVIDIA L40S": "l40s-8",
    "NVIDIA GeForce RTX 4090": "rtx4090-4",
    "NVIDIA B200": "b200-8",
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_devices_have_presets(name: str) -> None:
    memory_bytes = load_cluster(KNOWN[name]).device.memory_bytes
    assert cluster_of_gpu(Gpu(name, memory_bytes, 132, (9, 0))) == load_cluster(KNOWN[name])


@pytest.mark.parametrize(
    "gpu",
    [
        H100_PCIE,
        Gpu("NVIDIA GH200 480GB", 102_000_000_000, 132, (9, 0)),
        Gpu("NVIDIA H200 NVL", 150_000_000_000, 132, (9, 0)),
        Gpu("NVIDIA H100 80GB HBM3", 10_000_000_000, 16, (9, 0)),  # a slice
    ],
)
@pytest.mark.filterwarnings("ignore:there is no cluster preset")
def test_devices_that_resemble_those_of_presets_are_told_apart(gpu: Gpu) -> None:
    cluster = cluster_of_gpu(gpu)
    assert cluster.name == f"derived for {gpu.name}"
    assert cluster.device.memory_bytes == gpu.memory_bytes


@pytest.mark.parametrize(("gpu", "bandwidth", "float32", "half"), DATA_SHEETS)
@pytest.mark.filterwarnings("ignore:there is no cluster preset")
def test_derived_figures_are_near_those_of_data_sheets(
    gpu: Gpu, bandwidth: float, float32: float, half: float
) -> None:
    device = cluster_of_gpu(gpu).device
    # Data sheets round, and some take another clock.
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.02)
    assert device.flops_per_s["float32"] == pytest.approx(float32, rel=0.02)
    assert device.flops_per_s["float16"] == pytest.approx(half, rel=0.02)
    assert ("bfloat16" in device.flops_per_s) == (gpu.capability >= (8, 0))


def test_a_derived_description_says_what_it_is_and_what_would_be_better() -> None:
    with pytest.warns(UserWarning, match="no cluster preset for 'NVIDIA A10'") as warned:
        cluster = cluster_of_gpu(A10, per_machine=4)
    text = str(warned[0].message)
    for figure in ("23.6 GB", "600.1 GB/s", "31.2 TFLOP/s in float32", "profile-hardware"):
        assert figure in text
    assert "told by CUDA" in cluster.device.source
    assert mesh_axes(cluster, 4) == [(2, 0), (2, 0)]
    assert parse_cluster(cluster.to_dict(), "derived") == cluster


@pytest.mark.filterwarnings("ignore:there is no cluster preset")
def test_what_cuda_does_not_tell_is_assumed_and_said() -> None:
    gpu = replace(A10, clock_hz=None, memory_clock_hz=None, capability=(8, 7))
    cluster = cluster_of_gpu(gpu, per_machine=4, machines=2)
    assert "assumed as 1.5 GHz" in cluster.device.source
    assert "assumed for compute capability 8.7" in cluster.device.source
    assert cluster.device.memory_bandwidth_bytes_per_s == 600e9  # of 8.6, which is nearest
    assert mesh_axes(cluster, 8) == [(2, 0), (2, 1), (2, 1)]


def test_processes_on_cpus_share_the_memory_of_their_machine() -> None:
    cluster = cluster_of_cpus(16_000_000_000, 4, "the limit of the container")
    assert cluster.device.memory_bytes == 4_000_000_000
    text = "memory: 16.00 GB (the limit of the container) shared by 4 processes"
    assert text in cluster.device.source
    assert replace(cluster, device=load_cluster("cpu").device) == load_cluster("cpu")


def a_machine(root: Path, groups: str, limits: dict[str, str]) -> Path:
    """``/proc`` and ``/sys`` of a process in these control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/\n", {"memory.max": "1000000"}),
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "1000000", "a/b/memory.max": "max"}),
        ("0::/a/b\n", {"a/memory.max": "9000000", "a/b/memory.max": "1000000\n"}),
        ("5:cpu:/x\n4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "1000000"}),
    ],
)
def test_the_limit_of_a_container_bounds_the_memory(
    tmp_path: Path, groups: str, limits: dict[str, str]
) -> None:
    root = a_machine(tmp_path, groups, limits)
    assert machine_memory(root) == (1_000_000, "the limit of the container")


@pytest.mark.parametrize(
    "limits",
    [{}, {"memory.max": "max"}, {"memory.max": "99999999999999999999"}],
)
def test_without_a_limit_it_is_the_memory_of_the_machine(
    tmp_path: Path, limits: dict[str, str]
) -> None:
    memory_bytes, source = machine_memory(a_machine(tmp_path, "0::/\n", limits))
    assert source == "the memory of the machine"
    total_kib = int(Path("/proc/meminfo").read_text().split()[1])
    assert memory_bytes == 1024 * total_kib
