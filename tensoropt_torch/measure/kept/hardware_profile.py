"""Hardware profiles: what one machine's devices and collectives take, in a file.

A profile is versioned, says on what it was measured, and carries a checksum, so
that a file that was damaged or made elsewhere is refused instead of believed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tensoropt_torch.config.cluster import Cluster, Collective
from tensoropt_torch.config.records import Must, Positive, Record
from tensoropt_torch.measure.kept.files import check_owner_at_home, home, write_atomically
from tensoropt_torch.measure.kept.sealed import SealedFormat
from tensoropt_torch.measure.machine.key import MachineKey

FILE = SealedFormat("hardware profile", 4, "measure again with 'tensoropt profile-hardware'")

# (collective, axis set, ((bytes, seconds), ...)), bytes ascending.
Samples = Annotated[
    tuple[tuple[Positive, Positive], ...], Field(min_length=1), Must("one sample or more")
]
Curve = tuple[Collective, int, Samples]


@dataclass(frozen=True)
class HardwareProfile(Record):
    """What was measured on ``machine``.

    Attributes:
        cluster: the description of the job's devices, with measured figures, those
            of the runtime among them.
        mesh_axes: (size, level of the cluster) for each mesh axis that was measured.
        curves: times of collectives; empty for one process.
        max_bytes: up to what size collectives were to be measured.
        complete: whether the measurement ran to its end.
    """

    machine: MachineKey
    cluster: Cluster
    mesh_axes: tuple[tuple[int, int], ...]
    curves: tuple[Curve, ...] = ()
    max_bytes: int = 0
    complete: bool = False

    def __repr__(self) -> str:
        machine = self.machine
        return (
            f"HardwareProfile({machine.processes} processes on {machine.device}, mesh "
            f"{' x '.join(str(size) for size, _ in self.mesh_axes) or '1'}: {len(self.curves)} "
            f"collectives{'' if self.complete else ', not complete'})"
        )

    @property
    def num_devices(self) -> int:
        return math.prod(size for size, _ in self.mesh_axes)

    def with_curve(self, curve: Curve) -> HardwareProfile:
        """The profile with one more collective, in a fixed order."""
        others = [known for known in self.curves if known[:2] != curve[:2]]
        return replace(self, curves=tuple(sorted([*others, curve])))

    def to_json(self) -> str:
        """The profile as text; ``from_json`` reads it."""
        content = {
            "machine": asdict(self.machine),
            "cluster": self.cluster.to_dict(),
            "mesh_axes": self.mesh_axes,
            "curves": self.curves,
            "max_bytes": self.max_bytes,
            "complete": self.complete,
        }
        return FILE.seal(content)

    @staticmethod
    def from_json(text: str, where: str) -> HardwareProfile:
        """Raises TensorOptError, naming ``where``, if the text is no profile, is
        damaged, or of another version."""
        return FILE.as_record(HardwareProfile, FILE.unseal(text, where), where)

    def save(self, path: str | Path) -> None:
        """Write the file, at once or not at all."""
        write_atomically(Path(path), self.to_json())

    @staticmethod
    def load(path: str | Path) -> HardwareProfile:
        """Read a file that ``save`` wrote; in the folder of measurements it is this user's."""
        check_owner_at_home(Path(path))
        return FILE.as_record(HardwareProfile, FILE.read(path), f"'{path}'")


def profile_path(machine: MachineKey) -> Path:
    """Where the profile of these machines is kept for this user."""
    return home() / "hardware" / f"{machine.digest}.json"


def is_profile(path: Path) -> bool:
    """Whether a file claims to be a hardware profile; others are cluster files."""
    try:
        with path.open("rb") as file:
            return FILE.mark.encode() in file.read(200)
    except OSError:
        return False
