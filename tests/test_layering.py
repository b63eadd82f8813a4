"""Dependencies point left only, in C++ (#include) and in Python (import)."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "tensoropt_torch"

# Folder of csrc -> folders whose headers it may include besides its own, in the order
# of building: each names folders above it only, so that there is no circle.
CORE = ("common", "ir", "sharding", "rules", "comm", "reshard", "cost")
CPP_ALLOWED: dict[str, tuple[str, ...]] = {
    **{layer: CORE[:index] for index, layer in enumerate(CORE)},
    "problem": ("common",),
    "search/plan": ("common", "problem"),
    "search/bounds": ("common", "problem", "search/plan"),
    "search/products": ("common", "problem", "search/plan", "search/bounds"),
    "search": ("common", "problem", "search/plan", "search/bounds", "search/products"),
    "space": (*CORE, "problem"),
    "baselines": (*CORE, "problem", "space", "search"),
    "emit": (*CORE, "problem", "space"),
    "bindings": (*CORE, "problem", "space", "search", "baselines", "emit"),
    "runtime": ("common",),
}
# External headers -> folders which may include them; all others are free.
CPP_EXTERNAL = {
    re.compile(r"(torch|ATen|c10|caffe2|pybind11)/|(Python|pyconfig)\.h"): {
        "runtime",
        "bindings",
    },
    re.compile(r"fmt/"): {"common"},
}
SUFFIXES = (".h", ".cc")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# Parts of one group may import each other.
PYTHON_LAYERS = (
    ("errors", "config", "host_memory", "scheduling"),
    ("frontend",),
    ("profiler",),
    ("planner", "plan"),
    ("runtime",),
    ("emit",),
    ("rules",),
    ("simulate",),
    ("calibration",),
    ("report",),
    ("tasks",),
    ("api",),
    ("tf_style",),
    ("__init__",),
    ("cli_job",),
    ("cli",),
)
PYTHON_RANK = {part: rank for rank, group in enumerate(PYTHON_LAYERS) for part in group}
BINDINGS = "_C"


def cpp_includes(csrc: Path) -> Iterator[tuple[Path, str, str]]:
    """Every include as (file from csrc, quote, header)."""
    for file in sorted([*csrc.rglob("*.h"), *csrc.rglob("*.cc")]):
        for quote, header in INCLUDE.findall(file.read_text()):
            yield file.relative_to(csrc), quote, header


def cpp_violations(csrc: Path) -> list[str]:
    """One line for each file in no known folder, and each include that breaks a rule."""
    files = sorted(file.relative_to(csrc) for file in csrc.rglob("*.*") if file.suffix in SUFFIXES)
    found = [
        f"csrc/{file}: '{file.parent}' is not a layer"
        for file in files
        if str(file.parent) not in CPP_ALLOWED
    ]
    for file, quote, header in cpp_includes(csrc):
        layer = str(file.parent)
        problem = include_problem(layer, quote, header) if layer in CPP_ALLOWED else None
        if problem:
            found.append(f"csrc/{file}: {problem}")
    return found + circles(csrc)


def include_problem(layer: str, quote: str, header: str) -> str | None:
    """Why this layer may not include this header, or None."""
    for pattern, layers in CPP_EXTERNAL.items():
        if pattern.match(header):
            if layer in layers:
                return None
            return f"{header} may be included in {sorted(layers)} only"
    target = str(Path(header).parent)
    if quote == "<" and target not in CPP_ALLOWED:
        return None
    if target not in CPP_ALLOWED:
        return f"{header} is not given by its path from csrc/"
    if target != layer and target not in CPP_ALLOWED[layer]:
        return f"{layer} may not include {header}"
    return None


def circles(csrc: Path) -> list[str]:
    """One line if headers include each other."""
    graph: dict[str, set[str]] = {}
    for file, _, header in cpp_includes(csrc):
        graph.setdefault(str(file), set()).add(header)
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return [f"csrc: headers include each other: {' <- '.join(error.args[1])}"]
    return []


def cpp_arrows(csrc: Path) -> dict[str, set[str]]:
    """Folder -> folders whose headers it does include."""
    arrows: dict[str, set[str]] = {layer: set() for layer in CPP_ALLOWED}
    for file, _, header in cpp_includes(csrc):
        target = str(Path(header).parent)
        if target in CPP_ALLOWED and target != str(file.parent):
            arrows[str(file.parent)].add(target)
    return arrows


def python_violations(package: Path) -> list[str]:
    """One line for each import that breaks a rule."""
    found = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package)
        part = name.parts[0].removesuffix(".py")
        if part not in PYTHON_RANK:
            found.append(f"{PACKAGE}/{name}: '{part}' is not a layer")
            continue
        for target in imported_parts(file, package):
            if target == BINDINGS:
                continue
            if target not in PYTHON_RANK:
                found.append(f"{PACKAGE}/{name}: imports unknown '{target}'")
            elif PYTHON_RANK[target] > PYTHON_RANK[part]:
                found.append(f"{PACKAGE}/{name}: {part} may not import {target}")
    return found


def imported_parts(file: Path, package: Path) -> Iterator[str]:
    """Top-level parts of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(), filename=str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from package_part(alias.name, package)
        elif isinstance(node, ast.ImportFrom):
            module = absolute_module(node, file, package)
            for alias in node.names:
                yield from package_part(f"{module}.{alias.name}", package)


def absolute_module(node: ast.ImportFrom, file: Path, package: Path) -> str:
    """The module named after ``from``, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    folders = [PACKAGE, *file.relative_to(package).parts[:-1]]
    base = folders[: len(folders) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def package_part(module: str, package: Path) -> Iterator[str]:
    """The part of the package that a dotted name belongs to, if any."""
    names = module.split(".")
    if names[0] != PACKAGE:
        return
    name = names[1] if len(names) > 1 else "__init__"
    is_module = (package / name).is_dir() or (package / f"{name}.py").is_file()
    known = is_module or name in PYTHON_RANK or name == BINDINGS
    # Another name, or the package itself, is what __init__.py defines.
    yield name if known else "__init__"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_cpp_includes_point_left() -> None:
    assert cpp_violations(ROOT / "csrc") == []


def test_cpp_layers_name_only_those_before_them() -> None:
    layers = list(CPP_ALLOWED)
    for index, layer in enumerate(layers):
        assert set(CPP_ALLOWED[layer]) <= set(layers[:index]), layer


def test_python_imports_point_left() -> None:
    assert python_violations(ROOT / PACKAGE) == []


def test_allowed_includes_pass(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "common/check.h": "#include <fmt/format.h>",
            "ir/graph.h": '#include <vector>\n#include "common/check.h"',
            "space/space.cc": '#include "space/space.h"\n#include "ir/graph.h"',
            "search/plan/trees.h": '#include "problem/problem.h"',
            "search/ft.cc": '#include "search/ft.h"\n#include "search/plan/trees.h"',
            "bindings/module.cc": '#include <pybind11/stl.h>\n#include "search/ft.h"',
            "runtime/ops.cc": '#include <torch/library.h>\n#include "common/hash.h"',
        },
    )
    assert cpp_violations(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("common/a.h", '"ir/graph.h"'),
        ("sharding/a.cc", '"rules/rule.h"'),
        ("reshard/a.h", "<cost/model.h>"),
        ("search/a.cc", '"bindings/module.h"'),
        ("search/a.cc", '"ir/graph.h"'),
        ("search/a.cc", '"space/space.h"'),
        ("search/plan/a.cc", '"search/ft.h"'),
        ("search/plan/a.cc", '"search/bounds/b.h"'),
        ("search/bounds/a.h", '"search/products/b.h"'),
        ("problem/a.h", '"search/ft.h"'),
        ("space/a.h", '"search/ft.h"'),
        ("baselines/a.h", '"search/plan/b.h"'),
        ("emit/a.h", '"search/ft.h"'),
        ("search/other/a.cc", "<vector>"),
        ("search/a.cc", '"runtime/ops.h"'),
        ("bindings/a.cc", '"runtime/ops.h"'),
        ("runtime/a.cc", '"search/ft.h"'),
        ("runtime/a.cc", '"ir/graph.h"'),
        ("ir/a.cc", "<torch/torch.h>"),
        ("cost/a.cc", '"ATen/ATen.h"'),
        ("rules/a.h", "<c10/util/Exception.h>"),
        ("search/a.cc", "<pybind11/pybind11.h>"),
        ("comm/a.cc", "<Python.h>"),
        ("ir/a.cc", "<fmt/format.h>"),
        ("ir/a.cc", '"graph.h"'),
        ("ir/a.cc", '"../common/check.h"'),
        ("extra/a.cc", "<vector>"),
        ("a.cc", "<vector>"),
    ],
)
def test_wrong_include_is_found(tmp_path: Path, file: str, include: str) -> None:
    write(tmp_path, {file: f"  #  include {include}"})
    assert len(cpp_violations(tmp_path)) == 1


def test_headers_that_include_each_other_are_found(tmp_path: Path) -> None:
    write(tmp_path, {"ir/a.h": '#include "ir/b.h"', "ir/b.h": '#include "ir/a.h"'})
    assert len(cpp_violations(tmp_path)) == 1


def test_allowed_imports_pass(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "__init__.py": f"from {PACKAGE}.api import plan",
            "errors.py": "import torch",
            "config/cluster.py": f"from {PACKAGE}.errors import TensorOptError",
            "planner/search.py": f"from {PACKAGE} import _C, plan\nimport os.path",
            "plan.py": f"from .planner import search\nimport {PACKAGE}._C",
            "cli.py": f"import {PACKAGE}\nfrom {PACKAGE} import anything",
        },
    )
    assert python_violations(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("errors.py", f"from {PACKAGE}.frontend import capture"),
        ("config/cluster.py", f"import {PACKAGE}.plan"),
        ("planner/search.py", f"from {PACKAGE} import runtime"),
        ("planner/search.py", "from ..runtime import parallelize"),
        ("planner/search.py", "from .. import emit"),
        ("frontend/__init__.py", "from ..profiler import measure"),
        ("emit.py", "def f():\n    from .report import tables"),
        ("report.py", f"import {PACKAGE}"),
        ("report.py", f"from {PACKAGE} import parallelize"),
        ("__init__.py", "from .cli import main"),
        ("api.py", "from .cli import main"),
        ("api.py", f"from {PACKAGE}.helpers import x"),
        ("helpers.py", "import os"),
        ("helpers/x.py", "import os"),
    ],
)
def test_wrong_import_is_found(tmp_path: Path, file: str, statement: str) -> None:
    write(tmp_path, {file: statement})
    assert len(python_violations(tmp_path)) == 1


if __name__ == "__main__":  # the arrows that there are, for the docs and for reading
    for name, targets in cpp_arrows(ROOT / "csrc").items():
        print(f"{name:16} {' '.join(sorted(targets))}")
