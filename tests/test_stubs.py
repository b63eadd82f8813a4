"""The border to C++ has types, which are those of the library that is built."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

WRONG = """
from tensoropt_torch import _C

def first(planner: _C.Planner) -> str:
    return planner.nodes()[0].graph_node

def names(planner: _C.Planner) -> list[str]:
    return [row["name"] for row in planner.nodes()]

def right_kinds(program: _C.RankProgram, node: _C.NodeId, edge: _C.SpaceEdgeId) -> str:
    return program.call(node).form.target + program.reshard(edge).dtype

def edge_for_node(program: _C.RankProgram, edge: _C.SpaceEdgeId) -> str:
    return program.call(edge).form.target

def number_for_edge(program: _C.RankProgram, number: int) -> str:
    return program.reshard(number).dtype

def value_for_node(planner: _C.Planner, value: _C.ValueId) -> _C.NodeUnits:
    return planner.units_of_node(value)
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
