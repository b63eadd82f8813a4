"""A PyTorch of another minor release than the libraries were built for is refused, with the wheel
that is for it; and releases to build wheels for are found."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tensoropt_torch import _C, __version__
from tensoropt_torch.operators.library import check_release

ROOT = Path(__file__).parents[1]
RELEASE = ".".join(torch.__version__.split(".")[:2])


def test_the_library_knows_the_release_it_was_built_for() -> None:
    assert _C.torch_release() == RELEASE
    for version in (torch.__version__, f"{RELEASE}.7", f"{RELEASE}.0a0+git1234567"):
        check_release(RELEASE, version)


def test_another_release_is_refused_with_the_wheel_for_it() -> None:
    program = (
        "import torch; torch.__version__ = '2.99.1+cu130'\n"
        "from tensoropt_torch import find_frontier"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    said = done.stderr.partition("ImportError: ")[2]
    python = "cp{}{}".format(*sys.version_info)
    for part in (
        f"built for PyTorch {RELEASE}, and PyTorch 2.99.1+cu130 is installed",
        f"tensoropt_torch-{__version__}+torch2.99-{python}-*.whl",
        f"pip install 'tensoropt-torch=={__version__}+torch2.99' --find-links",
        "pip install --no-build-isolation .",
        f"pip install 'torch=={RELEASE}.*'",
    ):
        assert part in said, f"{part}\n{said}"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """The script that builds wheels."""
    spec = importlib.util.spec_from_file_location("build_wheels", ROOT / ".ci/build_wheels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_newest_of_each_minor_release_is_built_for(builder: ModuleType) -> None:
    printed = (
        "torch (2.15.0)\nAvailable versions: 2.15.0, 2.14.1, 2.14.0, 2.13.0+cpu, 2.13.0, "
        "2.12.1, 2.12.0, 2.9.1, 2.2.10, 1.13.1\n  INSTALLED: 2.13.0+cpu\n"
    )
    assert builder.newest_of_each_minor(printed, "2.12") == {
        "2.12": "2.12.1",
        "2.13": "2.13.0",
        "2.14": "2.14.1",
        "2.15": "2.15.0",
    }
    assert [*builder.newest_of_each_minor(printed, "2.2")] == ["2.2", "2.9", "2.12"] + [
        f"2.{minor}" for minor in (13, 14, 15)
    ]


def test_the_page_names_a_wheel_of_this_version() -> None:
    text = (ROOT / "docs" / "install.md").read_text()
    found = re.findall(r"tensoropt.torch(?:==|-)(\d[\d.]*)\+torch", text)
    assert set(found) == {__version__}


def test_metadata_is_bound_to_the_release_where_something_is_built(tmp_path: Path) -> None:
    """By setup.py itself; tests/test_wheel.py looks into a wheel."""
    program = f"from setuptools.build_meta import *; print({{call}}({str(tmp_path)!r}))"
    found = {}
    for call in ("prepare_metadata_for_build_wheel", "build_sdist"):
        done = subprocess.run(
            [sys.executable, "-c", program.format(call=call)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        found[call] = done.stdout.splitlines()[-1]
    made = f"tensoropt_torch-{__version__}"
    assert found["build_sdist"] == f"{made}.tar.gz"
    assert found["prepare_metadata_for_build_wheel"] == f"{made}+torch{RELEASE}.dist-info"
    metadata = (tmp_path / f"{made}+torch{RELEASE}.dist-info" / "METADATA").read_text()
    assert f"Requires-Dist: torch=={RELEASE}.*\n" in metadata
    assert "Requires-Dist: torch>" not in metadata
