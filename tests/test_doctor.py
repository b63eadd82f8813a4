"""``tensoropt doctor`` says what is missing, also where the package cannot be imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tensoropt_torch import __version__, doctor
from tensoropt_torch.cli import main
from tensoropt_torch.doctor import RUN, Finding

ROOT = Path(__file__).parents[1]


def named(found: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in found}


def test_what_runs_these_tests_can_run() -> None:
    found = doctor.findings()
    assert doctor.can_run(found)
    by_name = named(found)
    assert by_name["TensorOpt"].found == f"{__version__} in {ROOT / 'tensoropt_torch'}"
    needed = {finding.name for finding in found if finding.needed == RUN}
    libraries = {"PyTorch", "lazy-loader", "numpy", "pydantic", "rich"}
    assert needed == {"Python", "TensorOpt", "Gloo"} | libraries
    assert {"CMake", "C++20 compiler", "setuptools", "jinja2", "transformers"} <= by_name.keys()


def test_the_command_prints_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["can_run"]
    for row in said["findings"]:
        state = "ok     " if row["serves"] else "missing"
        assert f"  {state} {row['name']}: " in text


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tensoropt-torch {__version__}\n"


def test_tools_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = doctor.findings()
    by_name = named(found)
    for name in ("CMake", "C++20 compiler", "ninja", "ccache"):
        assert by_name[name].found is None and by_name[name].advice, name
    assert doctor.can_run(found)  # what is there needs no compiler


@pytest.mark.parametrize(
    ("version", "minimum", "serves"),
    [
        ("3.22.1", "3.22", True),
        ("3.9", "3.22", False),
        ("2.11.0+cpu", "2.11", True),
        ("2.10.1", "2.11", False),
        ("77", "77", True),
        ("2.13.0a0+git1", "2.11", True),
    ],
)
def test_versions_are_compared_by_numbers(version: str, minimum: str, serves: bool) -> None:
    assert doctor._compared("it", RUN, version, minimum, "advice").serves == serves


def test_an_old_compiler_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo old 4.8; else exit 1; fi\n')
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    compiler = named(doctor.findings())["C++20 compiler"]
    assert compiler.found == "old 4.8" and "C++20" in compiler.problem


def test_a_driver_without_a_gpu_in_pytorch_is_a_problem() -> None:
    for built in (True, False):
        finding = doctor._no_gpu("550.54", built)
        assert not finding.serves and finding.advice
    assert doctor._no_gpu(None, built=False).serves


def test_as_a_script_it_tells_why_the_package_cannot_be_imported(tmp_path: Path) -> None:
    package = tmp_path / "tensoropt_torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('undefined symbol')\n")
    (package / "doctor.py").write_text((ROOT / "tensoropt_torch" / "doctor.py").read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    done = subprocess.run(
        [sys.executable, str(package / "doctor.py")],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if " TensorOpt: " in line)
    assert "undefined symbol" in line and "pip install --no-build-isolation ." in line


def test_bounds_are_those_of_the_build() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    (minimum,) = re.findall(r"cmake_minimum_required\(VERSION ([\d.]+)\)", cmake)
    assert minimum == doctor.MIN_CMAKE
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert build == [f"setuptools>={doctor.MIN_SETUPTOOLS}"]
