"""What the device reaches, beside what its description says that it reaches."""

from __future__ import annotations

import warnings
from typing import Any

from benchmarks.gpu_check.worker import arguments, first_device, report
from tensoropt_torch.config import Cluster
from tensoropt_torch.measure.machine.device import measure_device
from tensoropt_torch.tasks import cluster_of

BUDGET_S = 10.0
SMALL_BUDGET_S = 0.5


def described(cluster: Cluster) -> dict[str, Any]:
    """The same figures as the search takes them: peaks by what is reached of them."""
    device, share = cluster.device, cluster.device.efficiency
    return {
        "cluster": cluster.name,
        "matmul_flops_per_s": {
            name: flops * share.matmul for name, flops in device.flops_per_s.items()
        },
        "copy_bytes_per_s": device.memory_bandwidth_bytes_per_s * share.memory,
        "launch_overhead_s": device.launch_overhead_s,
        "host_launch_s": device.host_launch_s,
        "memory_bytes": device.memory_bytes,
    }


def main() -> None:
    """Passes if it could be measured: how near they are is for people to judge."""
    chosen = arguments()
    device = first_device(chosen.device)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cluster = cluster_of(None)
    speed = measure_device(device, SMALL_BUDGET_S if chosen.small else BUDGET_S)
    measured = {
        "matmul_flops_per_s": speed.matmul_flops_per_s,
        "copy_bytes_per_s": speed.copy_bytes_per_s,
        "launch_s": speed.launch_s,
    }
    warned = [str(warning.message) for warning in said]
    report(True, measured=measured, described=described(cluster), warnings=warned)


if __name__ == "__main__":
    main()
