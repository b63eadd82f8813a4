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


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("module", ["python_functions", "python_hooks"])
def test_they_do_what_they_do_in_one_process(world: int, module: str) -> None:
    found = run_ranks(world, f"{__name__}:check_kinds", f"tests.distributed.{module}", 400)
    assert found == [[]] * world, f"random strategies of seeds {kinds.SEEDS}"


STEPS = "tests.distributed.python_steps"


@pytest.mark.parametrize(
    "steps",
    [
        "micro_batches",
        "recomputed",
        "compiled",
        "saved_plan",
        "unsynchronised",
        "removed_later",
        "evaluated",
    ],
)
def test_they_do_so_in_steps_of_other_kinds(steps: str) -> None:
    assert run_ranks(2, f"{STEPS}:{steps}", None, 300) == [[]] * 2


def test_micro_batches_are_refused_where_rows_count_together() -> None:
    found = run_ranks(2, f"{STEPS}:refused_micro_batches")
    assert found[0] == found[1] and len(found[0]) == 4
    for text, what in zip(found[0], ("NormClip", "Inject", "of a tensor", "'block'"), strict=True):
        assert what in text and "runs whole" in text and "max_micro_batches=1" in text


def test_hooks_that_the_plan_does_not_know_are_refused() -> None:
    for text in run_ranks(2, f"{STEPS}:hooks_that_came_later"):
        assert "module 'block' had other hooks when the model was captured" in text


def test_self_of_a_hook_is_the_parallel_module() -> None:
    assert run_ranks(2, f"{STEPS}:attributes_of_hooks") == [[True, True]] * 2
