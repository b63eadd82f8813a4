"""Where measurements are kept between runs, and what they were measured on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from tensoropt_torch.config.records import Record
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.profiler.hosts import hosts_of_ranks


@dataclass(frozen=True)
class MachineKey(Record):
    """The hardware and software of a job: measurements are good for equal ones only.

    ``cores`` are those that a process may use, ``threads`` what it uses for one
    operator; ``axes`` the sizes of the mesh, outermost first; ``favours_network`` says that
    the threads of the network have a larger share of the cores than those that compute,
    ``keeps_memory`` that a process keeps the host's memory that it frees.
    """

    device: str
    device_type: str
    cores: int
    threads: int
    processes: int
    machines: int
    backend: str
    torch: str
    axes: tuple[int, ...]
    favours_network: bool = False
    keeps_memory: bool = False

    @property
    def digest(self) -> str:
        """A short name for it, equal for equal keys only."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: MachineKey) -> list[str]:
        """What is not equal, e.g. ``threads: 1 instead of 2``."""
        mine, its = asdict(self), asdict(other)
        return [
            f"{name}: {mine[name]} instead of {its[name]}"
            for name in mine
            if mine[name] != its[name]
        ]


def machine_key(
    device: torch.device, axes: tuple[int, ...], *, favours_network: bool, keeps_memory: bool
) -> MachineKey:
    """The key of the running job, which rank 0 speaks for. Collective."""
    distributed = dist.is_available() and dist.is_initialized()
    hosts = hosts_of_ranks()
    key = MachineKey(
        device=_device_name(device),
        device_type=device.type,
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        processes=len(hosts),
        machines=len(set(hosts)),
        backend=dist.get_backend() if distributed else "none",
        torch=torch.__version__,
        axes=axes,
        favours_network=favours_network,
        keeps_memory=keeps_memory,
    )
    holder = [key]
    if len(hosts) > 1:
        dist.broadcast_object_list(holder, 0)
    return holder[0]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def home() -> Path:
    """The folder of this user's measurements: ``$TENSOROPT_HOME``, else ``tensoropt``
    in ``$XDG_CACHE_HOME``, else in ``~/.cache``. It need not exist."""
    own = os.environ.get("TENSOROPT_HOME")
    if own:
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tensoropt"


@cache
def digest_of_package() -> str:
    """Of the files of this package, compiled ones included: equal for the same version of it,
    built from the same sources by the same tools."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".so")):
        digest.update(str(path.relative_to(package)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file as a whole: whoever reads it finds the old or the new text.

    Raises:
        TensorOptError: the folder cannot be written, or the disk is full; the old
            file is as it was.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise TensorOptError(
            f"'{path}' cannot be written: {error}; free space, or set TENSOROPT_HOME to another "
            "folder"
        ) from error
