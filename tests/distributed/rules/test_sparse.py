"""Sparse matrices that a forward pass makes, against one process."""

from __future__ import annotations

import pytest

from tests.distributed.harness import run_ranks

HERE = "tests.distributed.sparse_models"


@pytest.mark.filterwarnings("ignore:operator 'aten")
def test_a_sparse_matrix_made_in_forward_equals_one_process() -> None:
    assert run_ranks(2, "tests.distributed.kinds:check", f"{HERE}:neighbours", 200) == [[]] * 2
