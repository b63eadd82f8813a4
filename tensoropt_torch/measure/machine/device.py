"""What one device reaches while all ranks of the job are busy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tensoropt_torch.config.cluster import DType
from tensoropt_torch.measure.machine.clock import (
    ComputeClock,
    SharedClock,
    crowding_of,
    undisturbed_s,
)

MATMUL_SIZES = {"cpu": 512, "cuda": 4096}
ACTIVATION_BYTES = {"cpu": 8 << 20, "cuda": 1 << 30}
CHAIN_LENGTH = 32
# Tensors read or written by gelu(x + y) as the roofline counts them: 3 and 2 in
# forward, twice that in backward.
ACTIVATION_TRAFFIC = 15
DTYPES: Mapping[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class DeviceSpeed:
    """Speeds that were reached, not peaks; the slowest rank's."""

    matmul_flops_per_s: dict[DType, float]  # by dtype
    copy_bytes_per_s: float  # read plus written, by element-wise training operators
    launch_s: float  # of one operator, forward or backward: of the host if the device is none


def measure_device(device: torch.device | None = None, budget_s: float = 2.0) -> DeviceSpeed:
    """Measures what the roofline of ``csrc/cost/op_cost.cc`` is made of: a matrix
    product per dtype, and forward and backward of large and of tiny element-wise
    operators.

    Collective if a process group runs: all ranks measure at the same time, since
    they may share cores or memory, and all get the slowest rank's figures.

    Args:
        device: where to measure; by default the CPU.
        budget_s: time for everything.

    """
    device = device or torch.device("cpu")
    shared_clock = SharedClock(device)
    clock = ComputeClock(device, crowding_of(device))
    share_s = budget_s / (len(DTYPES) + 2)
    n = MATMUL_SIZES.get(device.type, 1024)
    seconds = [_matmul_s(n, dtype, device, clock, share_s) for dtype in DTYPES.values()]
    elements = ACTIVATION_BYTES.get(device.type, 8 << 20) // 4
    seconds.append(_repeated_s(_activation_step(elements, device), clock, share_s))
    seconds.append(_repeated_s(_chain_step(device), clock, share_s))
    *matmul_s, copy_s, launch_s = shared_clock.slowest(seconds)
    return DeviceSpeed(
        matmul_flops_per_s={name: 2 * n**3 / s for name, s in zip(DTYPES, matmul_s, strict=True)},
        copy_bytes_per_s=ACTIVATION_TRAFFIC * 4 * elements / copy_s,
        launch_s=launch_s / (2 * CHAIN_LENGTH),
    )


def _matmul_s(
    n: int, dtype: torch.dtype, device: torch.device, clock: ComputeClock, budget_s: float
) -> float:
    a, b = torch.ones(2, n, n, dtype=dtype, device=device)
    return _repeated_s(lambda: a @ b, clock, budget_s)


def _activation_step(elements: int, device: torch.device) -> Callable[[], object]:
    x, y = torch.ones(2, elements, device=device)
    x.requires_grad_()

    def step() -> None:
        torch.autograd.grad(torch.nn.functional.gelu(x + y), x, y)

    return step


def _chain_step(device: torch.device) -> Callable[[], object]:
    x = torch.ones(8, device=device, requires_grad=True)

    def step() -> None:
        y = x
        for _ in range(CHAIN_LENGTH):
            y = y * 1.0
        torch.autograd.grad(y, x, x)

    return step


def _repeated_s(call: Callable[[], object], clock: ComputeClock, budget_s: float) -> float:
    """The time of a call, from as many as fill the budget (3 at least)."""
    call()
    samples: list[float] = []
    end = clock.now() + budget_s
    while len(samples) < 3 or clock.now() < end:
        start = clock.now()
        call()
        samples.append(clock.now() - start)
    return undisturbed_s(samples)
