"""Buckets are as large as what was measured of the network asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensoropt_torch.config import load_cluster
from tensoropt_torch.plan import Settings
from tensoropt_torch.space.buckets import MIB, bucket_bytes


def settings(latency_s: float, bytes_per_s: float, added_s: float = 0.0) -> Settings:
    """Of four devices with such a network between them all."""
    device = load_cluster("cpu").device
    device = replace(device, runtime=replace(device.runtime, collective_s=added_s))
    cluster = replace(load_cluster("cpu"), device=device)
    curve = tuple((2.0**power, latency_s + 2.0**power / bytes_per_s) for power in range(10, 26))
    return Settings(
        cluster=cluster.to_dict(),
        mesh_axes=((2, 0), (2, 0)),
        optimizer="adam",
        optimizer_state_bytes={"float32": 8.0},
        measured=(("all_reduce", 3, curve),),
    )


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s", "expected"),
    [
        (4e-3, 4e8, 32 * MIB),  # more processes than cores
        (4e-4, 1e8, 2 * MIB),  # a slow link
        (1e-5, 4e8, 1 * MIB),
        (1e-3, 4e8, 16 * MIB),
        (1e-2, 1e10, 32 * MIB),  # the largest
    ],
)
def test_latency_is_a_small_share_of_a_bucket(
    latency_s: float, bytes_per_s: float, expected: int
) -> None:
    assert bucket_bytes(settings(latency_s, bytes_per_s)) == expected


def test_that_ranks_wait_for_each_other_is_no_latency() -> None:
    assert bucket_bytes(settings(5e-4, 4e8, added_s=5e-4)) == bucket_bytes(settings(5e-4, 4e8))


def test_what_was_not_measured_over_all_devices_changes_nothing() -> None:
    given = settings(4e-3, 4e8)
    ((name, _, curve),) = given.measured
    for measured in ((), ((name, 1, curve),), (("all_gather", 3, curve),)):
        assert bucket_bytes(replace(given, measured=measured)) == given.bucket_bytes
