"""What this machine has of what TensorOpt needs, and how to get the rest: ``tensoropt doctor``.

A script as well, for where the package itself cannot be imported::

    python tensoropt_torch/doctor.py

It looks only: nothing is installed, and no process group is made.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
DISTRIBUTION = "tensoropt-torch"
OF_DEVELOPERS = ("dev", "docs", "test")  # extras that users do not need
MIN_CMAKE = "3.22"
MIN_SETUPTOOLS = "77"
BUILD_AGAIN = (
    "install the wheel for the PyTorch that is here, or build with it: "
    "pip install --no-build-isolation ."
)
CPP20 = "#include <concepts>\n#include <span>\nstd::span<int> s; template <std::integral T> T f();"
RUN, BUILD, GPUS = "to run", "to build from source", "for GPUs"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: what it is.
        needed: what it is needed for.
        found: its version, or what else there is to say of it; None if it is not there.
        problem: why it does not serve; empty if it does.
        advice: how to get it; empty if it serves.

    """

    name: str
    needed: str
    found: str | None
    problem: str = ""
    advice: str = ""

    @property
    def serves(self) -> bool:
        """Whether it is there and can be used."""
        return not self.problem


def findings() -> list[Finding]:
    """Everything that is looked for, in the order of the printed groups."""
    return [*_to_run(), *_devices(), *_to_build(), *_extras()]


def can_run(found: Sequence[Finding]) -> bool:
    """Whether all is there that running needs."""
    return all(finding.serves for finding in found if finding.needed == RUN)


def text_of(found: Sequence[Finding]) -> str:
    """A line for each, in groups by what they are needed for."""
    lines: list[str] = []
    for needed in dict.fromkeys(finding.needed for finding in found):
        lines.append(needed)
        for finding in (finding for finding in found if finding.needed == needed):
            state = "ok     " if finding.serves else "missing"
            said = [finding.found or "", finding.problem, finding.advice]
            lines.append(f"  {state} {finding.name}: {'; '.join(part for part in said if part)}")
    return "\n".join(lines)


def examine(as_json: bool) -> int:
    """Print what was found; returns 1 if something is missing that running needs, else 0."""
    found = findings()
    if as_json:
        records = [asdict(finding) | {"serves": finding.serves} for finding in found]
        print(json.dumps({"can_run": can_run(found), "findings": records}, indent=1))
    else:
        print(text_of(found))
    return 0 if can_run(found) else 1


def _metadata() -> tuple[str, list[str]]:
    """The bound for Python, and the requirements, with their extras as in a wheel."""
    project_file = PACKAGE.parent / "pyproject.toml"
    if not project_file.exists():
        metadata = importlib.metadata.metadata(DISTRIBUTION)
        return metadata["Requires-Python"], metadata.get_all("Requires-Dist") or []
    project = tomllib.loads(project_file.read_text())["project"]
    optional = project["optional-dependencies"].items()
    extras = [f'{name}; extra == "{extra}"' for extra, names in optional for name in names]
    return project["requires-python"], [*project["dependencies"], *extras]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _compared(name: str, needed: str, found: str | None, minimum: str, advice: str) -> Finding:
    """A version beside the least that is needed."""
    if found is None:
        return Finding(name, needed, None, "not found", advice)
    if _numbers(found) < _numbers(minimum):
        return Finding(name, needed, found, f"{minimum} or newer is needed", advice)
    return Finding(name, needed, found)


def _distribution(requirement: str, needed: str) -> Finding:
    """An installed package beside ``name>=version``."""
    name, _, minimum = requirement.partition(";")[0].strip().partition(">=")
    try:
        found: str | None = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = None
    return _compared(name, needed, found, minimum or "0", f"pip install '{name}>={minimum}'")


def _to_run() -> Iterator[Finding]:
    python, requirements = _metadata()
    minimum = python.removeprefix(">=")
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield _compared("Python", RUN, version, minimum, f"a Python {minimum} or newer")
    plain = [requirement for requirement in requirements if ";" not in requirement]
    for requirement in plain:
        of_torch = re.fullmatch(r"torch(?:>=|==)([\d.]+?)(?:\.\*)?", requirement)
        if of_torch:  # a build requires one minor release: torch==2.13.*
            yield _torch(of_torch[1])
        else:
            yield _distribution(requirement, RUN)
    yield _package()
    yield _gloo()


def _torch(minimum: str) -> Finding:
    advice = "see https://pytorch.org/get-started"
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("PyTorch", RUN, None, f"cannot be imported ({error})", advice)
    found = _compared("PyTorch", RUN, torch.__version__, minimum, advice)
    kind = f"with CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return Finding(found.name, RUN, f"{found.found} {kind}", found.problem, found.advice)


def _package() -> Finding:
    """The package with both of its compiled libraries."""
    name = "TensorOpt"
    try:
        import tensoropt_torch._C
        import tensoropt_torch.operators
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        return Finding(name, RUN, None, f"cannot be imported ({reason})", BUILD_AGAIN)
    return Finding(name, RUN, f"{tensoropt_torch.__version__} in {PACKAGE}")


def _gloo() -> Finding:
    """Over Gloo ranks agree on calls, also those with GPUs."""
    name = "Gloo"
    try:
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            problem = "PyTorch was built without it"
            return Finding(name, RUN, None, problem, "see https://pytorch.org/get-started")
        dist.ProcessGroupGloo.create_default_device()
    except ImportError:
        return Finding(name, RUN, None, "comes with PyTorch", "install PyTorch")
    except RuntimeError as error:
        advice = "name the network device: GLOO_SOCKET_IFNAME=lo (ip -brief address lists them)"
        return Finding(name, RUN, None, f"no network device: {error}", advice)
    return Finding(name, RUN, "has a network device")


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError):
        return
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if not torch.cuda.is_available():
        yield _no_gpu(driver, built=torch.version.cuda is not None)
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        size = f"{found.total_memory / 2**30:.1f} GiB"
        capability = f"compute capability {found.major}.{found.minor}"
        yield Finding(f"GPU {index}", GPUS, f"{found.name}, {size}, {capability}")
    if torch.distributed.is_nccl_available():
        library: Any = torch.cuda.nccl  # PyTorch does not annotate its version
        yield Finding("NCCL", GPUS, ".".join(str(part) for part in library.version()[:3]))
    else:
        advice = "a PyTorch with NCCL: https://pytorch.org/get-started"
        yield Finding("NCCL", GPUS, None, "PyTorch was built without it", advice)


def _no_gpu(driver: str | None, built: bool) -> Finding:
    """What it may come from that PyTorch sees no GPU."""
    if driver is None:
        return Finding("GPU", GPUS, "none here; plans can be made, and run on CPUs")
    advice = (
        "see whether CUDA_VISIBLE_DEVICES hides it, and which driver this CUDA needs"
        if built
        else "a PyTorch with CUDA: https://pytorch.org/get-started"
    )
    return Finding("GPU", GPUS, None, f"driver {driver} is there, PyTorch sees no GPU", advice)


def _output(*command: str) -> str | None:
    """The first line that a command prints; None if it is not there or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else None


def _to_build() -> Iterator[Finding]:
    yield _compiler()
    cmake = _output("cmake", "--version")
    advice = "pip install cmake, or your system's package manager"
    yield _compared("CMake", BUILD, cmake and cmake.split()[-1], MIN_CMAKE, advice)
    yield _distribution(f"setuptools>={MIN_SETUPTOOLS}", BUILD)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if header.exists():
        yield Finding("Python headers", BUILD, str(header.parent))
    else:
        yield Finding("Python headers", BUILD, None, "no Python.h", "apt-get install python3-dev")
    for name, advice in {"ninja": "pip install ninja", "ccache": "apt-get install ccache"}.items():
        found = _output(name, "--version")
        problem = "" if found else "not found: builds are slower without"
        yield Finding(name, "to build faster", found, problem, "" if found else advice)


def _compiler() -> Finding:
    """The one that CMake takes, if it compiles C++20."""
    name = "C++20 compiler"
    chosen = os.environ.get("CXX", "").split()
    command = chosen or [c for c in ("c++", "g++", "clang++") if shutil.which(c)][:1]
    version = _output(*command, "--version") if command else None
    if version is None:
        return Finding(name, BUILD, None, "not found", "apt-get install g++")
    flags = ("-std=c++20", "-fsyntax-only", "-x", "c++", "-")
    done = subprocess.run([*command, *flags], input=CPP20, capture_output=True, text=True)
    if done.returncode != 0:
        return Finding(name, BUILD, version, "does not compile C++20", "a newer one, named by CXX")
    return Finding(name, BUILD, version)


def _extras() -> Iterator[Finding]:
    for requirement in _metadata()[1]:
        extra = re.search(r"extra == [\"'](\w+)[\"']", requirement)
        if extra and extra[1] not in OF_DEVELOPERS:
            yield _distribution(requirement, f"for the extra '{extra[1]}'")


def main() -> int:
    """As a script: its own arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    return examine(parser.parse_args().json)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of the script and of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


if __name__ == "__main__":
    sys.path[0] = str(PACKAGE.parent)  # the package's own folder would hide other modules
    sys.exit(main())
