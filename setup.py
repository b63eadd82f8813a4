"""Drives CMake: the libraries are built there, not by setuptools.

The build folder, ``build/cmake`` or what ``TENSOROPT_BUILD_DIR`` names, is kept, so that a second
build is incremental. What is built is for one minor release of PyTorch, and says so: its version
has the local label ``+torch2.13``, and it requires ``torch==2.13.*``. A source distribution has
neither.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, __version__, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).resolve().parent
BUILD_DIR = Path(os.environ.get("TENSOROPT_BUILD_DIR", ROOT / "build" / "cmake")).resolve()
HOW_TO_INSTALL = "pip install --no-build-isolation ."
MIN_SETUPTOOLS = 77


def check_setuptools() -> None:
    """Refuses a setuptools too old to read pyproject.toml and build wheels."""
    if int(__version__.split(".")[0]) < MIN_SETUPTOOLS:
        raise SystemExit(
            f"setuptools {__version__} is too old to build TensorOpt; run\n"
            f"    pip install 'setuptools>={MIN_SETUPTOOLS}'\n"
            f"    {HOW_TO_INSTALL}"
        )


def torch_dir() -> Path:
    """Folder of the torch that this interpreter finds, whose headers and libraries are enough."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise SystemExit(
            f"TensorOpt builds against the PyTorch it will run with, but "
            f"{sys.executable} has no torch.\n"
            f"Install PyTorch first (https://pytorch.org/get-started), then run\n"
            f"    {HOW_TO_INSTALL}\n"
            f"Without --no-build-isolation pip hides an installed torch from "
            f"the build."
        )
    return Path(found.origin).parent


def torch_release() -> str | None:
    """The minor release of that torch, as in ``2.13``; None where there is none."""
    try:
        major, minor, *_ = importlib.metadata.version("torch").split(".")
    except importlib.metadata.PackageNotFoundError:
        return None
    return f"{major}.{minor}"


def cmake() -> str:
    """Path of CMake."""
    found = shutil.which("cmake")
    if found is None:
        raise SystemExit(
            "CMake 3.22 or newer is needed to build TensorOpt and was not "
            "found; install it with 'pip install cmake' or your system's "
            "package manager."
        )
    return found


def generator() -> list[str]:
    """Ninja where it is present and the build folder is new."""
    if (BUILD_DIR / "CMakeCache.txt").exists() or not shutil.which("ninja"):
        return []
    return ["-G", "Ninja"]


class CMakeBuild(build_ext):
    """Configures, builds and installs into the package folder."""

    def run(self) -> None:
        prefix = ROOT if self.inplace else Path(self.build_lib).resolve()
        configure = [
            cmake(),
            *("-S", str(ROOT), "-B", str(BUILD_DIR)),
            *generator(),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DTENSOROPT_TORCH_DIR={torch_dir()}",
            *os.environ.get("TENSOROPT_CMAKE_ARGS", "").split(),
        ]
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        self.call(configure)
        build = ["--build", str(BUILD_DIR), "--target", "python_libs"]
        self.call([cmake(), *build, "--parallel", jobs])
        self.call([cmake(), "--install", str(BUILD_DIR), "--prefix", str(prefix)])

    def call(self, command: list[str]) -> None:
        """Runs a command, or ends the build with its name."""
        self.announce(" ".join(command), level=2)
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit(f"the build stopped at: {' '.join(command)}")

    def get_outputs(self) -> list[str]:
        """The libraries are package data, which setuptools need not track."""
        return []


class BoundMetadata(egg_info):
    """The metadata of what is built: its version, and the release of PyTorch that it requires."""

    def finalize_options(self) -> None:
        release = torch_release()
        if release is not None and "sdist" not in self.distribution.commands:
            self.tag_build = f"+torch{release}"
            others = [r for r in self.distribution.install_requires if not r.startswith("torch>")]
            self.distribution.install_requires = [f"torch=={release}.*", *others]
            self.distribution.metadata.install_requires = self.distribution.install_requires
        super().finalize_options()


class FreshBuild(build):
    """Puts nothing into a wheel that an earlier build has left."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


check_setuptools()
setup(
    ext_modules=[Extension("tensoropt_torch._C", sources=[])],
    cmdclass={"build": FreshBuild, "build_ext": CMakeBuild, "egg_info": BoundMetadata},
)
