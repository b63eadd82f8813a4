"""Dependencies point left only, in C++ (#include) and in Python (import)."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
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
    "search/order": ("common", "problem"),
    "search/bounds": ("common", "problem", "search/order"),
    "search/products": ("common", "problem", "search/order", "search/bounds"),
    "search": ("common", "problem", "search/order", "search/bounds", "search/products"),
    "pipeline": ("common", "problem"),
    "space": (*CORE, "problem"),
    "describe": (*CORE, "problem", "space"),
    "baselines": (*CORE, "problem", "space", "describe", "search"),
    "emit": (*CORE, "problem", "space"),
    "search_space": (*CORE, "problem", "space", "describe", "search", "baselines"),
    "bindings": (
        *CORE,
        *(
            "problem",
            "space",
            "describe",
            "search",
            "baselines",
            "emit",
            "search_space",
            "pipeline",
        ),
    ),
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

# Part of the package, a folder or a module at its top -> parts that it may import besides
# its own, likewise. Imports inside of functions and for type checking count as well.
TEXTS = ("units", "layer_names", "html_table", "logs", "progress")
FRONTEND = ("frontend/watching", "frontend/python_calls", "frontend")
SPACE = ("space", "batches", "telling")
PLANS = (*SPACE, "stages", "plan")
PLANNING = ("errors", "checks", *TEXTS, "pages", "config", *FRONTEND, *PLANS, "planner")
VALUES = ("values", "parameters", "steps")
RUNNING = (
    *PLANNING,
    "operators",
    "runtime",
    *VALUES,
    "program",
    "emit",
    "calls",
    "module",
    "simulate",
)
MEASURE = ("measure/machine", "measure/kept", "measure/runs", "measure")
MEASURING = (*RUNNING, *MEASURE)
PYTHON_ALLOWED: dict[str, tuple[str, ...]] = {
    "version": (),
    "collector": (),
    "errors": (),
    "step_code": (),
    "checks": ("errors",),
    "units": (),
    "layer_names": (),
    "html_table": (),
    "logs": (),
    "progress": ("units", "logs"),
    "pages": ("errors", "layer_names", "units"),
    "config": ("errors",),
    "operators": ("version",),
    "runtime/host": ("errors",),
    "runtime": ("errors", "step_code", "operators", "runtime/host"),
    "frontend/passes": ("errors", "operators"),
    "frontend/watching": ("errors",),
    "frontend/python_calls": ("errors", "frontend/passes", "frontend/watching"),
    "frontend": (
        "errors",
        *TEXTS,
        "collector",
        "operators",
        "frontend/passes",
        "frontend/python_calls",
        "frontend/watching",
    ),
    "space": ("errors", "config", *FRONTEND),
    "batches": ("errors", "collector", "frontend/passes", *FRONTEND, "space"),
    "telling": ("errors", "step_code", *TEXTS, "config", *FRONTEND, "space"),
    "stages": ("errors", "frontend/passes", *FRONTEND, "space", "batches"),
    "plan": ("errors", *TEXTS, "config", "frontend", *SPACE, "stages"),
    "values": ("errors", "logs", "progress", "frontend", "runtime"),
    "parameters": ("errors", *FRONTEND, "operators", "runtime", "values"),
    "program": (
        *("errors", "step_code", *FRONTEND, "frontend/passes", "space", "operators"),
        *("runtime", "values"),
    ),
    "planner": (
        *("errors", "checks", *TEXTS, "pages", "config", *FRONTEND, *SPACE, "plan", "program"),
    ),
    "emit": (
        *("errors", "units", "logs", "config", *FRONTEND, "frontend/passes", "space", "plan"),
        *("operators", "runtime", "values", "parameters", "program"),
    ),
    "steps": ("errors", "runtime", "values", "parameters"),
    "calls": ("errors", "units", "logs", "config", *FRONTEND, "space", "plan", "runtime"),
    "module": (
        *("errors", "checks", *TEXTS, "collector", *FRONTEND, "space", "batches", "stages"),
        "plan",
        *("runtime", *VALUES, "program", "emit", "calls"),
    ),
    "checkpoint": ("errors", "runtime", "values", "steps", "module"),
    "samplers": ("errors", "plan", "module"),
    "padding": ("errors", "runtime"),
    "rules": ("errors", *FRONTEND, "space", "runtime", "values", "program"),
    "simulate": (
        *PLANNING,
        "frontend/passes",
        "collector",
        "operators",
        "runtime",
        "values",
        "program",
        "emit",
        "module",
    ),
    "measure/machine": ("errors", "config", "runtime/host", "runtime"),
    "measure/kept": (*PLANNING, "measure/machine"),
    "measure/runs": (*RUNNING, "collector", "measure/machine", "measure/kept"),
    "measure": (*RUNNING, "measure/machine", "measure/kept", "measure/runs"),
    "tasks": (*MEASURING, "rules"),
    "model_configs": ("errors", "checks", "tasks"),
    "staging": (*MEASURING, "tasks"),
    "strategy": (*MEASURING, "tasks", "staging"),
    "report": (*PLANNING, "program", "simulate", "measure/runs", "measure", "staging"),
    "advising": (*MEASURING, "tasks"),
    "api": (*MEASURING, "tasks", "strategy", "staging", "advising"),
    "tf_style": (*PLANNING, "runtime", "module", "tasks", "strategy", "api"),
    "__init__": (
        "version",
        "collector",
        *MEASURING,
        "checkpoint",
        "samplers",
        "padding",
        "rules",
        "tasks",
        "stages",
        "staging",
        "advising",
        "api",
    ),
    "elastic": (*MEASURING, "tasks", "api"),
    "doctor": ("__init__", "operators"),
    "integrations": (
        "errors",
        "frontend",
        "plan",
        "runtime",
        "values",
        "module",
        "checkpoint",
        "tasks",
        "api",
    ),
    "cli": (
        "version",
        *PLANNING,
        "runtime",
        "rules",
        "simulate",
        "measure",
        "report",
        "tasks",
        "staging",
        "model_configs",
        "advising",
        "api",
        "__init__",
        "doctor",
    ),
    "__main__": ("cli",),
}
BINDINGS = f"{PACKAGE}._C"


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
    includes = ((str(file), header) for file, _, header in cpp_includes(csrc))
    return found + [f"csrc: headers include each other: {circle}" for circle in circles(includes)]


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


def circles(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """One of the circles that these arrows make, if there are any."""
    graph: dict[str, set[str]] = {}
    for source, target in pairs:
        graph.setdefault(source, set()).add(target)
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def cpp_arrows(csrc: Path) -> dict[str, set[str]]:
    """Folder -> folders whose headers it does include."""
    pairs = ((str(file.parent), str(Path(h).parent)) for file, _, h in cpp_includes(csrc))
    return arrows(CPP_ALLOWED, pairs)


def arrows(layers: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """The targets of each layer among the others."""
    found: dict[str, set[str]] = {layer: set() for layer in layers}
    for source, target in pairs:
        if source != target and target in found:
            found[source].add(target)
    return found


def python_imports(package: Path) -> Iterator[tuple[Path, Path]]:
    """Every import as (file, imported file), both from the package, and the ``__init__``
    of folders that it runs as well. Stubs say what an ``__init__`` imports when it is asked."""
    for path in sorted([*package.rglob("*.py"), *package.rglob("__init__.pyi")]):
        file = path.relative_to(package).with_suffix(".py")
        for name in imported_names(path, package):
            if name.split(".")[0] != PACKAGE or name.startswith(BINDINGS):
                continue
            target = module_file(name, package)
            yield file, target
            outer = [folder for folder in target.parents if folder not in file.parents]
            yield from ((file, folder / "__init__.py") for folder in outer)


def imported_names(file: Path, package: Path) -> Iterator[str]:
    """Dotted names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(), filename=str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute_module(node, file, package)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def absolute_module(node: ast.ImportFrom, file: Path, package: Path) -> str:
    """The module named after ``from``, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    folders = [PACKAGE, *file.relative_to(package).parts[:-1]]
    base = folders[: len(folders) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def module_file(name: str, package: Path) -> Path:
    """The file of a module, or of the one that defines the last names."""
    path = Path(*name.split(".")[1:])
    for module in (path, *path.parents):
        if (package / module).is_dir():
            return module / "__init__.py"
        if (package / module).with_suffix(".py").is_file():
            return module.with_suffix(".py")
    raise AssertionError(f"{package} is no folder")


def part_of(file: Path) -> str:
    """The folder of a file, or its own name at the top of the package."""
    return str(file.parent) if file.parent.name else file.stem


def python_violations(package: Path) -> list[str]:
    """One line for each file in no known part, each wrong arrow, and a circle of modules."""
    files = sorted(file.relative_to(package) for file in package.rglob("*.py"))
    found = [
        f"{PACKAGE}/{file}: '{part_of(file)}' is not a layer"
        for file in files
        if part_of(file) not in PYTHON_ALLOWED
    ]
    imports = list(python_imports(package))
    wrong = {
        f"{PACKAGE}/{file}: {part_of(file)} may not import {part_of(target)}"
        for file, target in imports
        if part_of(file) in PYTHON_ALLOWED
        and part_of(target) not in (part_of(file), *PYTHON_ALLOWED[part_of(file)])
    }
    modules = ((str(file), str(target)) for file, target in imports if file != target)
    return [
        *found,
        *sorted(wrong),
        *(f"{PACKAGE}: modules import each other: {circle}" for circle in circles(modules)),
    ]


def python_arrows(package: Path) -> dict[str, set[str]]:
    """Part -> parts that it does import."""
    pairs = ((part_of(file), part_of(target)) for file, target in python_imports(package))
    return arrows(PYTHON_ALLOWED, pairs)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_cpp_includes_point_left() -> None:
    assert cpp_violations(ROOT / "csrc") == []


@pytest.mark.parametrize("allowed", [CPP_ALLOWED, PYTHON_ALLOWED], ids=["cpp", "python"])
def test_layers_name_only_those_before_them(allowed: Mapping[str, tuple[str, ...]]) -> None:
    layers = list(allowed)
    for index, layer in enumerate(layers):
        assert set(allowed[layer]) <= set(layers[:index]), layer


def test_python_imports_point_left() -> None:
    assert python_violations(ROOT / PACKAGE) == []


def test_allowed_includes_pass(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "common/check.h": "#include <fmt/format.h>",
            "ir/graph.h": '#include <vector>\n#include "common/check.h"',
            "space/space.cc": '#include "space/space.h"\n#include "ir/graph.h"',
            "search/order/trees.h": '#include "problem/problem.h"',
            "search/ft.cc": '#include "search/ft.h"\n#include "search/order/trees.h"',
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
        ("search/order/a.cc", '"search/ft.h"'),
        ("search/order/a.cc", '"search/bounds/b.h"'),
        ("search/bounds/a.h", '"search/products/b.h"'),
        ("problem/a.h", '"search/ft.h"'),
        ("space/a.h", '"search/ft.h"'),
        ("space/a.h", '"describe/b.h"'),
        ("describe/a.h", '"search/b.h"'),
        ("baselines/a.h", '"search/order/b.h"'),
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


def package_of(root: Path, files: dict[str, str]) -> Path:
    """A package with all parts, empty but for these files."""
    empty = {}
    for part in PYTHON_ALLOWED:
        is_folder = (ROOT / PACKAGE / part).is_dir()
        empty[f"{part}/__init__.py" if is_folder else f"{part}.py"] = ""
    return write(root, empty | files)


def test_allowed_imports_pass(tmp_path: Path) -> None:
    package_of(
        tmp_path,
        {
            "__init__.py": f"from {PACKAGE}.api import plan",
            "errors.py": "import torch",
            "config/cluster.py": f"from {PACKAGE}.errors import TensorOptError",
            "planner/search.py": f"from {PACKAGE} import _C, plan\nimport os.path",
            "space/search_space.py": f"from ..frontend import capture\nimport {PACKAGE}._C",
            "frontend/capture.py": "from .passes import nodes\nfrom .passes.nodes import add",
            "frontend/passes/nodes.py": "from ...errors import TensorOptError",
            "cli.py": f"import {PACKAGE}\nfrom {PACKAGE} import anything",
        },
    )
    assert python_violations(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "statement", "target"),
    [
        ("errors.py", f"from {PACKAGE}.frontend import capture", "frontend"),
        ("config/cluster.py", f"import {PACKAGE}.plan", "plan"),
        ("planner/search.py", f"from {PACKAGE} import runtime", "runtime"),
        ("planner/search.py", "from ..runtime import parallelize", "runtime"),
        ("planner/search.py", "from .. import emit", "emit"),
        ("plan/plan.py", "from ..planner import search", "planner"),
        ("space/search_space.py", "from ..plan import plan", "plan"),
        ("frontend/__init__.py", "from ..measure import race", "measure"),
        ("frontend/passes/nodes.py", "from ..lowering import lower", "frontend"),
        ("frontend/passes/nodes.py", "from .. import lowering", "frontend"),
        ("planner/search.py", "from ..frontend.passes import nodes", "frontend/passes"),
        ("runtime/agreement.py", "from ..frontend.capture import Model", "frontend"),
        ("emit/eager_writer.py", "def f():\n    from ..report import tables", "report"),
        ("emit/eager_writer.py", "if TYPE_CHECKING:\n    from ..rules import bench", "rules"),
        ("report/tables.py", f"import {PACKAGE}", "__init__"),
        ("report/tables.py", f"from {PACKAGE} import parallelize", "__init__"),
        ("__init__.py", "from .cli import main", "cli"),
        ("api/__init__.pyi", "from ..cli import main", "cli"),
        ("api/training.py", f"from {PACKAGE}.helpers import x", "__init__"),
    ],
)
def test_wrong_import_is_found(tmp_path: Path, file: str, statement: str, target: str) -> None:
    (found,) = python_violations(package_of(tmp_path, {file: statement}))
    said = f"{PACKAGE}/{file.removesuffix('i')}: "  # stubs speak for their modules
    assert found.startswith(said) and found.endswith(f"may not import {target}")


@pytest.mark.parametrize("file", ["helpers.py", "helpers/x.py", "planner/inner/x.py"])
def test_a_part_that_is_not_known_is_found(tmp_path: Path, file: str) -> None:
    (found,) = python_violations(package_of(tmp_path, {file: "import os"}))
    assert found.endswith("is not a layer")


@pytest.mark.parametrize(
    "files",
    [
        {"planner/a.py": "from .b import x", "planner/b.py": "from .a import y"},
        {
            "planner/a.py": "from . import b",
            "planner/b.py": "from .c import x",
            "planner/c.py": f"if TYPE_CHECKING:\n    from {PACKAGE}.planner.a import y",
        },
        {"planner/__init__.py": "from .a import x", "planner/a.py": "from . import x"},
    ],
)
def test_modules_that_import_each_other_are_found(tmp_path: Path, files: dict[str, str]) -> None:
    (found,) = python_violations(package_of(tmp_path, files))
    assert "modules import each other" in found


if __name__ == "__main__":  # the arrows that there are, for the docs and for reading
    for tree, found in (
        ("csrc", cpp_arrows(ROOT / "csrc")),
        (PACKAGE, python_arrows(ROOT / PACKAGE)),
    ):
        print(f"{tree}/")
        for name, targets in found.items():
            print(f"  {name:16} {' '.join(sorted(targets))}")
