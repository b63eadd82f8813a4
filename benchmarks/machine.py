"""What a benchmark ran on, and how much memory it took."""

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """The processor's name and number of cores."""
    return {"cpu": cpu_name(), "cores": os.cpu_count()}


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def processor(machine_of_results: Mapping[str, Any]) -> str:
    """What ``machine`` found, for a table."""
    words = re.sub(r"\((R|TM)\)|\bProcessor\b", "", machine_of_results["cpu"]).split()
    return f"{' '.join(words)}, {machine_of_results['cores']} cores"


def peak_rss_bytes() -> int:
    """The most memory that this process has had so far (Linux).

    ``getrusage`` would count what the parent had when it started this process.
    """
    status = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
