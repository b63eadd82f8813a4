"""What the package imports is what it says that it needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Packages that come with another one.
BROUGHT_BY = {"pydantic_core": "pydantic"}

# Needed without being imported: PyTorch's collectives on objects.
BEHIND_TORCH = {"numpy"}


def imported() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "tensoropt_torch").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    return {BROUGHT_BY.get(name, name) for name in found}


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {re.split(r"[<>=~! ]", text)[0] for text in project["dependencies"]}


def test_what_is_imported_is_declared() -> None:
    assert imported() - sys.stdlib_module_names - {"tensoropt_torch"} == declared() - BEHIND_TORCH


def test_dependencies_are_explained() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    for name in declared():
        assert f"`{name}>=" in text
