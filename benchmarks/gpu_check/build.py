"""Builds the libraries into the package of this checkout, with what the machine has.

Nothing is installed. Where CMake or a compiler is missing, libraries that are there already
are taken as they are, if they can be imported with the PyTorch that is here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

from benchmarks.gpu_check.steps import ROOT

FOLDER = ROOT / "build" / "cmake"
SAID = 2000  # characters of what a failed command printed


def main() -> None:
    """Builds, or tells why not; then tries to import what is there."""
    problem = missing() or build()
    found = imported()
    how = "built" if not problem else f"taken as they are, since {problem}"
    print(json.dumps({"passed": not found, "libraries": how, "import": found or "works"}))


def missing() -> str:
    """What the build needs and is not here."""
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    if not any(name and shutil.which(name.split()[0]) for name in compilers):
        return "there is no C++ compiler"
    return "" if shutil.which("cmake") else "there is no CMake"


def build() -> str:
    """Runs CMake as setup.py does; what failed, if something did."""
    fresh = not (FOLDER / "CMakeCache.txt").exists()
    ninja = ["-G", "Ninja"] if fresh and shutil.which("ninja") else []
    tree = str(FOLDER)
    python = f"-DPython_EXECUTABLE={sys.executable}"
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
    for command in (
        ["cmake", "-S", str(ROOT), "-B", tree, *ninja, python],
        ["cmake", "--build", tree, "--target", "python_libs", "--parallel", jobs],
        ["cmake", "--install", tree, "--prefix", str(ROOT)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-SAID:]
            return f"'{' '.join(command[:2])}' failed: {said}"
    return ""


def imported() -> str:
    """Why the package cannot be imported; empty if it can."""
    command = [sys.executable, "-c", "import tensoropt_torch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stderr[-SAID:] if done.returncode else ""


if __name__ == "__main__":
    main()
