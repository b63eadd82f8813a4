"""The page of a validation has its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensoropt_torch import TensorOptError
from tensoropt_torch.measure import Validation
from tensoropt_torch.units import format_bytes, format_seconds
from tests.measure.runs.test_validation import rows
from tests.report.reading import ReadPage


def test_predicted_and_measured_figures_are_shown(tmp_path: Path) -> None:
    validation = rows([1.0, 1.5])
    validation.report(tmp_path / "v.html")
    page = ReadPage.of(tmp_path / "v.html")
    shown = page.table("Predicted and measured")
    for row, found in zip(validation.rows, shown, strict=True):
        assert found[0] == str(row.seed)
        assert found[1:3] == [format_seconds(row.step_s), format_seconds(row.measured_step_s)]
        assert found[8] == format_bytes(row.measured_memory_bytes)
    errors = {row[0]: row[1] for row in page.table("Mean relative errors")}
    assert errors["step time"] == f"{100 * validation.step_error:.1f} %"


def test_nothing_that_was_run_is_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(TensorOptError, match=r"no strategy was run; give ValidationOptions"):
        Validation(()).report(tmp_path / "v.html")
