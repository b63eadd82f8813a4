"""Averages of weights that callbacks of Lightning keep are, on several ranks, those of one
process."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.distributed.harness import run_ranks
from tests.integrations.average_runs import Run, norms, plain
from tests.integrations.lightning_runs import STEPS, Log
from tests.integrations.test_lightning import LOSSES, assert_equal

HERE = "tests.integrations.average_runs"


def assert_same(
    got: tuple[Log, dict[str, Tensor]], expected: tuple[Log, dict[str, Tensor]], first_epoch: int
) -> None:
    assert_equal(got[0], expected[0], LOSSES, first_epoch)
    assert got[1].keys() == expected[1].keys()
    for name, value in expected[1].items():  # rounding grows along the run
        torch.testing.assert_close(got[1][name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("average", ["swa", "ema"])
@pytest.mark.parametrize("module", ["itself", "child"])
def test_averages_are_those_of_one_process(tmp_path: Path, module: str, average: str) -> None:
    """With those of batch normalisation, whose statistics are begun anew for the averages (SWA),
    or averaged themselves (EMA); also from a checkpoint in between."""
    expected = plain(Run(module, average, str(tmp_path / "plain")))
    for got in run_ranks(2, f"{HERE}:ours", Run(module, average, str(tmp_path / "two"), 2), 200):
        assert_same(got, expected, 0)
    checkpoint = str(tmp_path / "two" / "epoch=1.ckpt")
    on = Run(module, average, str(tmp_path / "on"), 2, checkpoint)
    for got in run_ranks(2, f"{HERE}:ours", on, 200):
        assert_same(got, expected, 2)


def test_norms_of_gradients_are_logged_as_in_one_process(tmp_path: Path) -> None:
    expected = logged(norms(Run("child", "", str(tmp_path / "plain"))), tmp_path / "plain")
    run = Run("child", "", str(tmp_path / "two"), 2)
    for last in run_ranks(2, f"{HERE}:norms", run, 200):
        got = logged(last, tmp_path / "two")
        assert got.keys() == expected.keys() and "grad_2.0_norm_total" in got
        for name, values in expected.items():
            assert got[name] == pytest.approx(values, rel=1e-3, abs=1e-6), name


def logged(last: dict[str, list[float]], folder: Path) -> dict[str, list[float]]:
    """What is in the file, and the last numbers that callbacks see."""
    (file,) = folder.rglob("metrics.csv")
    with file.open() as rows:
        found = list(csv.DictReader(rows))
    names = [name for name in found[0] if name.startswith("grad") or name == "loss"]
    in_file = {f"file {name}": [float(row[name]) for row in found] for name in names}
    assert len(found) == STEPS
    return {**in_file, **last}
