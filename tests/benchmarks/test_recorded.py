"""What two records of plans differ in is told."""

from __future__ import annotations

import pytest

from benchmarks.picks.models import MODELS
from benchmarks.recorded import LEFT_OUT, different, recorded


def test_what_differs_is_named() -> None:
    before = {"points": [["0x1p+0", "0x1p-1"]], "peaks": [1, 2], "guarantee": "exact"}
    after = {"points": [["0x1p+0", "0x1.8p-1"]], "peaks": [1, 2], "choices": []}
    assert different(before, before) == []
    choices, guarantee, points = different(before, after)
    assert choices == "choices: null before, [] now"
    assert guarantee == 'guarantee: "exact" before, null now'
    assert points == 'points: [["0x1p+0", "0x1p-1"]] before, [["0x1p+0", "0x1.8p-1"]] now'


def test_ten_models_and_more_are_recorded() -> None:
    assert {*LEFT_OUT} < {*MODELS} and len(MODELS) - len(LEFT_OUT) >= 10


@pytest.mark.slow
def test_the_same_code_gives_the_same_record() -> None:
    assert different(recorded("lstm"), recorded("lstm")) == []
