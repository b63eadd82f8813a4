"""What acts through Python does the same as in one process: Functions and hooks."""

import importlib
import warnings

import pytest
import torch

from tests.distributed import kinds
from tests.distributed.harness import run_ranks
from tests.distributed.kinds import compare, strategies


def check_kinds(module: str) -> list[str]:
    """On every rank: what is wrong with the kinds of a module."""
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    found = []
    for name, make in importlib.import_module(module).KINDS.items():
        kind = make()
        for label, plan in strategies(kind):
            found += [f"{name}, {text}" for text in compare(kind, label, plan)]
    return found


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("module", ["python_functions", "python_hooks"])
def test_they_do_what_they_do_in_one_process(world: int, module: str) -> None:
    found = run_ranks(world, f"{__name__}:check_kinds", f"tests.distributed.{module}", 400)
    assert found == [[]] * world, f"random strategies of seeds {kinds.SEEDS}"
