"""The border to C++ has types, which are those of the library that is built."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

WRONG = """
from tensoropt_torch import _C

def first(space: _C.SearchSpace) -> str:
    return space.nodes()[0].graph_node

def names(space: _C.SearchSpace) -> list[str]:
    return [row["name"] for row in space.nodes()]

def right_kinds(program: _C.RankProgram, node: _C.NodeId, edge: _C.SpaceEdgeId) -> str:
    return program.call(node).form.target + program.reshard(edge).dtype

def edge_for_node(program: _C.RankProgram, edge: _C.SpaceEdgeId) -> str:
    return program.call(edge).form.target

def number_for_edge(program: _C.RankProgram, number: int) -> str:
    return program.reshard(number).dtype

def value_for_node(space: _C.SearchSpace, value: _C.ValueId) -> _C.NodeUnits:
    return space.units_of_node(value)
"""


def test_the_stubs_are_those_of_the_library() -> None:
    command = [sys.executable, ".ci/write_stubs.py", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_wrong_use_of_the_border_is_a_type_error(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(file)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert 'got "NodeId", expected "str"' in found.stdout, found.stdout
    assert '"NodeRow" is not indexable' in found.stdout, found.stdout
    for given, wanted in (("SpaceEdgeId", "NodeId"), ("int", "SpaceEdgeId"), ("ValueId", "NodeId")):
        assert f'incompatible type "{given}"; expected "{wanted}"' in found.stdout, found.stdout
    assert "Found 5 errors" in found.stdout, found.stdout


MOST_BY_POSITION = 4


def too_many_by_position(stubs: str) -> list[str]:
    """Functions and methods that take more arguments by position than a reader tells apart."""
    found = []
    for function in ast.walk(ast.parse(stubs)):
        if isinstance(function, ast.FunctionDef):
            arguments = [*function.args.posonlyargs, *function.args.args]
            count = len([a for a in arguments if a.arg not in ("self", "cls")])
            if count > MOST_BY_POSITION or function.args.vararg is not None:
                found.append(f"{function.name}({', '.join(a.arg for a in arguments)})")
    return found


def test_what_takes_many_arguments_takes_them_by_name() -> None:
    stubs = (ROOT / "tensoropt_torch" / "_C.pyi").read_text()
    assert not too_many_by_position(stubs)
    five = "class A:\n    def f(self, a, b, c, d, e): ...\n"
    assert too_many_by_position(five) == ["f(self, a, b, c, d, e)"]
    assert not too_many_by_position(five.replace("d, e", "d, *, e"))
    assert too_many_by_position(five.replace("b, c, d, e", "*rest")) == ["f(self, a)"]


# Records that have many fields, or defaults of C++.
RECORDS = (
    *("Device", "Level", "OpWork", "OpSample", "RuntimeOverheads", "SpaceOptions"),
    *("SpaceSetup", "SearchOptions", "ReshardedTensor"),
)


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_made_by_keyword_in_one_module(record: str) -> None:
    stubs = ast.parse((ROOT / "tensoropt_torch" / "_C.pyi").read_text())
    (found,) = [n for n in stubs.body if isinstance(n, ast.ClassDef) and n.name == record]
    (init,) = [f for f in found.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
    assert [argument.arg for argument in init.args.args] == ["self"]
    makers = [
        file.name
        for file in (ROOT / "tensoropt_torch").rglob("*.py")
        if f"_C.{record}(" in file.read_text()
    ]
    assert len(makers) == 1, f"_C.{record} is made in {makers}"
