"""What the package imports, and when: each name where it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensoropt_torch

ROOT = Path(__file__).parents[1]


def printed(program: str, **environment: str) -> str:
    """By a new process, which fails if the program does."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "program",
    [
        "import tensoropt_torch",
        "from tensoropt_torch import Cluster, list_presets, load_cluster; load_cluster('cpu')",
        "from tensoropt_torch.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from tensoropt_torch.cli import main; main(['clusters'])",
    ],
)
def test_what_needs_no_torch_does_not_import_it(program: str) -> None:
    said = printed(f"{program}\nimport sys; print('torch' in sys.modules)")
    assert said.endswith("False\n")


def test_jobs_do_not_import_what_few_of_them_need() -> None:
    """Pages, explanations, simulated steps, runs of plans, stages and compiled graphs."""
    few = (
        "emit.whole",
        "measure.runs.training",
        "pages.page",
        "planner.why",
        "rules.trial",
        "simulate.step",
        "staging.search",
        "telling.details",
    )
    for name in few:
        assert (ROOT / "tensoropt_torch" / f"{name.replace('.', '/')}.py").is_file(), name
    said = printed(
        "import sys\n"
        "from tensoropt_torch import auto_parallel\n"
        f"print([name for name in {few} if f'tensoropt_torch.{{name}}' in sys.modules])"
    )
    assert said.endswith("[]\n")


def test_every_public_name_is_found_and_stays() -> None:
    assert {*tensoropt_torch.__all__} <= {*dir(tensoropt_torch)}
    for name in tensoropt_torch.__all__:
        found = getattr(tensoropt_torch, name)
        assert vars(tensoropt_torch)[name] is found


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        getattr(tensoropt_torch, "no_such_function")  # noqa: B009
