"""Names of presets for any number of machines: ``h100-128x8`` are 128 machines with 8 H100 each,
``l40s-4`` is one with 4 L40S."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from tensoropt_torch.errors import TensorOptError, close_match

MOST_OF_A_MACHINE = 8  # devices

_NAME = re.compile(r"(?P<gpu>.+)-((?P<machines>\d+)x)?(?P<devices>\d+)")


@dataclasses.dataclass(frozen=True)
class Network:
    """What joins machines: a link in bytes/s, of each device or of each machine."""

    bytes_per_s: float
    of: Literal["device", "machine"]
    latency_s: float
    words: str
    source: str


def _infiniband(gigabits: int, machine: str) -> Network:
    return Network(
        gigabits / 8 * 1e9,
        "device",
        10e-6,
        f"{gigabits} Gb/s InfiniBand per device",
        f"NVIDIA DGX {machine} data sheet: 8 ports of {gigabits} Gb/s InfiniBand in a machine; "
        "latency assumed",
    )


_ASSUMED = Network(
    25e9,
    "machine",
    20e-6,
    "200 Gb/s per machine",
    "assumed: 200 Gb/s for each machine; latency assumed",
)


@dataclasses.dataclass(frozen=True)
class Family:
    """The presets of one GPU: how it is called, the preset that has its device and the links in
    a machine, and what joins machines."""

    title: str
    preset: str
    network: Network


FAMILIES: Mapping[str, Family] = {
    "a100-40gb": Family("A100 of 40 GB", "a100-40gb-8", _infiniband(200, "A100")),
    "a100-80gb": Family("A100 of 80 GB", "a100-80gb-8", _infiniband(200, "A100")),
    "b200": Family("B200", "b200-8", _infiniband(400, "B200")),
    "h100": Family("H100", "h100-8", _infiniband(400, "H100")),
    "h200": Family("H200", "h200-8", _infiniband(400, "H200")),
    "l40s": Family("L40S", "l40s-8", _ASSUMED),
    "rtx4090": Family("GeForce RTX 4090", "rtx4090-4", _ASSUMED),
    "v100": Family(
        "V100 of 16 GB",
        "paper-2x8-v100",
        Network(
            12.5e9,
            "machine",
            10e-6,
            "100 Gb/s InfiniBand",
            "the paper: 100 Gb/s InfiniBand; one link for a machine and latency assumed",
        ),
    ),
}

PATTERN_WORDS = (
    "<gpu>-<machines>x<devices of one>, such as h100-128x8, or <gpu>-<devices> for one machine, "
    f"with any number of machines, 1 to {MOST_OF_A_MACHINE} devices of one, and one of "
    f"{', '.join(FAMILIES)}"
)


@dataclasses.dataclass(frozen=True)
class PresetName:
    """What a name says."""

    gpu: str
    machines: int
    devices: int  # of one machine

    @property
    def family(self) -> Family:
        return FAMILIES[self.gpu]

    def __str__(self) -> str:
        machines = f"{self.machines}x" if self.machines > 1 else ""
        return f"{self.gpu}-{machines}{self.devices}"


def preset_name(name: str) -> PresetName | None:
    """What a name of the pattern says; None: it is not of the pattern, or of no GPU that is known.

    Raises:
        TensorOptError: it is of a known GPU, and of a number of devices that no machine has.
    """
    found = _NAME.fullmatch(name)
    if found is None or found["gpu"] not in FAMILIES:
        return None
    machines, devices = int(found["machines"] or 1), int(found["devices"])
    if machines < 1 or not 1 <= devices <= MOST_OF_A_MACHINE:
        raise TensorOptError(
            f"cluster '{name}' is not allowed: machines: {machines}, devices in each: {devices}; "
            f"presets are {PATTERN_WORDS}; describe others by a TOML file"
        )
    return PresetName(found["gpu"], machines, devices)


def gpu_hint(name: str) -> str:
    """``did you mean '...'? `` for a name of the pattern whose GPU is not known."""
    found = _NAME.fullmatch(name)
    if found is None:
        return ""
    rest = name[len(found["gpu"]) :]
    return close_match(name, [family + rest for family in FAMILIES])


def larger_preset(name: str, num_devices: int) -> str | None:
    """The preset of the GPU of ``name`` that can lay out so many devices: as many machines as it
    takes, with as many devices as those of ``name``. None where there is no such preset."""
    try:
        known = preset_name(name)
    except TensorOptError:  # a cluster of the user's own
        return None
    if known is None or num_devices % known.devices != 0:
        return None
    return str(dataclasses.replace(known, machines=num_devices // known.devices))
