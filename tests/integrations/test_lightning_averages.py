"""Averages of weights that callbacks of Lightning keep are, on several ranks, those of one
process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.distributed.harness import run_ranks
from tests.integrations.average_runs import Run, plain
from tests.integrations.lightning_runs import Log
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
