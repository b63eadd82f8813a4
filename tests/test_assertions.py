"""Every test says what must hold: it asserts, expects an error, or calls a helper that does."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Of other libraries: what raises where something is not as it should be.
CHECKS = {"raises", "warns", "deprecated_call", "fail", "assert_close", "assert_allclose"}
# Runs code that must not fail, in processes whose errors come back, or of its own.
RUNS = {"check_call"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(tree: ast.Module) -> Iterator[Function]:
    """All functions and methods, also inner ones."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def called_names(function: Function) -> set[str]:
    """Last names of what it calls, and of what it names to be called by others: functions that
    are handed over, and ``"module:function"`` texts, which name what runs in processes."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(node.value.split(":")[1:])
    return names


def checks_by_itself(function: Function) -> bool:
    """Whether it has an assertion, raises one, or expects an error."""
    for node in ast.walk(function):
        if isinstance(node, (ast.Assert, ast.Raise)):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else None
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name in CHECKS | RUNS:
                return True
    return False


def seen_files(path: Path, trees: dict[Path, ast.Module], root: Path) -> list[Path]:
    """Those whose functions a file may call: itself, and what it imports of these files."""
    found = [path]
    for node in ast.walk(trees[path]):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            files = [(root / Path(*name.split("."))).with_suffix(".py") for name in names]
            found += [file for file in files if file in trees]
    return found


def without_checks(root: Path, folders: Sequence[str] = ("tests",)) -> list[str]:
    """``file::test`` of each that checks nothing, by itself or through functions of these
    folders."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text()) for path in paths}
    functions = {path: list(functions_of(tree)) for path, tree in trees.items()}
    seen = {path: seen_files(path, trees, root) for path in paths}
    checking = {path: {f.name for f in functions[path] if checks_by_itself(f)} for path in paths}
    calls = {(path, f.name): called_names(f) for path in paths for f in functions[path]}
    grows = True
    while grows:
        grows = False
        for (path, name), called in calls.items():
            known = name in checking[path]
            if not known and any(called & checking[other] for other in seen[path]):
                checking[path].add(name)
                grows = True
    return [
        f"{path.relative_to(root)}::{function.name}"
        for path in paths
        if path.name.startswith("test_")
        for function in functions[path]
        if function.name.startswith("test_") and function.name not in checking[path]
    ]


def test_every_test_checks_something() -> None:
    assert without_checks(ROOT, ("tests", "benchmarks")) == []


@pytest.mark.parametrize(
    "body",
    [
        "assert 1 == 1",
        "with pytest.raises(ValueError):\n        int('a')",
        "helper()",
        "torch.testing.assert_close(1, 1)",
        "run_ranks(2, f'{HERE}:helper')",
        "list(map(helper, [1]))",
    ],
)
def test_a_test_that_checks_is_not_named(tmp_path: Path, body: str) -> None:
    text = f"def helper():\n    inner()\ndef inner():\n    assert x\ndef test_it():\n    {body}\n"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_one.py").write_text(text)
    assert without_checks(tmp_path) == []


@pytest.mark.parametrize("body", ["1 + 1", "helper()", "print('helper')", "'assert x'"])
def test_a_test_that_checks_nothing_is_named(tmp_path: Path, body: str) -> None:
    (tmp_path / "tests").mkdir()
    text = f"def helper():\n    x()\ndef test_it():\n    {body}\n"
    (tmp_path / "tests/test_one.py").write_text(text)
    (tmp_path / "tests/other.py").write_text("def x():\n    assert y\n")  # is not imported
    assert without_checks(tmp_path) == ["tests/test_one.py::test_it"]


def test_helpers_of_other_files_count_where_they_are_imported(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/other.py").write_text("def x():\n    assert y\n")
    text = "from tests.other import x\ndef test_it():\n    x()\n"
    (tmp_path / "tests/test_one.py").write_text(text)
    assert without_checks(tmp_path) == []
