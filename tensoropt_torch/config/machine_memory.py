"""How much memory the processes of this machine may use."""

from __future__ import annotations

import os
from pathlib import Path


def machine_memory(root: Path = Path("/")) -> tuple[int, str]:
    """Bytes that all processes of this machine, or of this container, may use together,
    and where the number is from.

    Args:
        root: where ``/proc`` and ``/sys`` are.
    """
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for path in _limit_files(root) if (limit := _read(path)) is not None]
    least = min(limits, default=physical)
    if least < physical:
        return least, "the limit of the container"
    return physical, "the memory of the machine"


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that processes of this machine may still take without others giving up theirs."""
    limit, _ = machine_memory(root)
    information = root / "proc/meminfo"
    for line in information.read_text().splitlines() if information.is_file() else []:
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return min(limit, 1024 * int(amount.split()[0]))
    return limit


def _limit_files(root: Path) -> list[Path]:
    """Files of the limits of this process's control groups and of those above them, of
    both versions of cgroups."""
    groups = root / "proc/self/cgroup"
    files = []
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        files.append(folder / name)
        for part in Path(path.strip("/")).parts:
            folder = folder / part
            files.append(folder / name)
    return files


def _read(path: Path) -> int | None:
    """A limit in bytes; None where there is none."""
    try:
        text = path.read_text().strip()
    except OSError:  # a container does not see the groups above its own
        return None
    return int(text) if text.isdigit() else None
