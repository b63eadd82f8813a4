"""Models with the CTC loss against one process."""

from __future__ import annotations

import pytest

from tests.distributed.harness import run_ranks

HERE = "tests.distributed.ctc_models"
KINDS = ["reader", "reader_of_each", "reader_of_sums", "speech", "speech_of_sums"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_one_process(kind: str) -> None:
    assert run_ranks(2, "tests.distributed.kinds:check", f"{HERE}:{kind}", 200) == [[]] * 2
