"""What the project's files say of each other: packages, dependencies, settings of pytest."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_USERS = ("huggingface", "lightning", "report", "transformers")  # the others are of developers
INTEGRATIONS = ROOT / "tensoropt_torch" / "integrations"
OWN = {"tensoropt_torch", "tests", "benchmarks", "examples", "gpt", "text"}
# Those whose module has another name, or comes with another one.
DISTRIBUTIONS = {
    "lazy_loader": "lazy-loader",
    "markupsafe": "jinja2",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
    "pydantic_core": "pydantic",
}


def imported(folder: Path, besides: Path | None = None) -> Iterator[str]:
    """The modules of others that the code of a folder imports, as one installs them."""
    for path in folder.rglob("*.py"):
        if besides is not None and path.is_relative_to(besides):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top not in OWN | sys.stdlib_module_names:
                    yield DISTRIBUTIONS.get(top, top)


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[><=\[; ]", requirement)[0] for requirement in requirements}


OPTIONAL = {name for extra in OF_USERS for name in names_of(EXTRAS[extra])}


def test_the_package_imports_what_it_depends_on() -> None:
    needed = set(imported(ROOT / "tensoropt_torch", besides=INTEGRATIONS))
    optional = names_of(EXTRAS["huggingface"] + EXTRAS["report"])
    assert optional <= needed
    # PyTorch imports NumPy.
    assert needed - optional | {"numpy"} == names_of(PROJECT["dependencies"])


def test_optional_packages_are_imported_when_they_are_needed() -> None:
    command = [
        sys.executable,
        "-c",
        "from tensoropt_torch import *; import sys; print(*sys.modules)",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert not OPTIONAL & set(done.stdout.split())
    assert "torch.distributed.checkpoint" not in done.stdout.split()


def test_integrations_import_what_their_extras_list() -> None:
    needed = set(imported(INTEGRATIONS)) - names_of(PROJECT["dependencies"])
    listed = names_of(EXTRAS["transformers"] + EXTRAS["lightning"])
    assert needed | {"accelerate"} == listed  # Trainer imports Accelerate


def test_dependencies_are_explained() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    for requirement in PROJECT["dependencies"] + [r for e in OF_USERS for r in EXTRAS[e]]:
        assert f"`{requirement}`" in text


def test_tests_import_what_their_extra_lists() -> None:
    needed = {name for folder in ("tests", "benchmarks") for name in imported(ROOT / folder)}
    listed = names_of(EXTRAS["test"]) - {"tensoropt-torch"}
    assert needed - names_of(PROJECT["dependencies"]) - OPTIONAL == listed


def test_tools_have_one_version() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    pinned = names_of([line for line in lines if line[:1] != "#"])
    assert {name for extra in EXTRAS.values() for name in names_of(extra)} - {
        "tensoropt-torch"
    } <= pinned


@pytest.mark.parametrize("top", ["tensoropt_torch", "tests", "benchmarks"])
def test_folders_are_packages(top: str) -> None:
    for path in (ROOT / top).rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), path.parent


def test_no_test_file_is_empty() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert "def test_" in path.read_text(), path


def test_what_a_failing_test_printed_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "test_random.py"
    path.write_text("def test_it():\n    print('first seed', 4700 + 11)\n    assert False\n")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "first seed 4711" in done.stdout


def test_ci_runs_all_parts_and_tells_what_failed() -> None:
    command = [str(ROOT / ".ci" / "run"), "nothing_of_this_name", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "===== make nothing_of_this_name =====" in done.stdout
    _, _, summary = done.stdout.partition("===== summary")
    assert re.search(r"nothing_of_this_name +FAILED", summary)
    assert re.search(r"--version +passed", summary)
    assert subprocess.run([*command[:1], "--version"], capture_output=True).returncode == 0
