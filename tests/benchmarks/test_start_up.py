"""What is made of the seconds of jobs that start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import start_up, start_up_job
from benchmarks.start_up import COLD, DDP, WARM


def test_parts_are_what_lies_between_their_ends() -> None:
    ends = {"interpreter": 0.25, "import of torch": 1.25, "first step": 3.0}
    assert start_up_job.parts(ends) == {
        "interpreter": 0.25,
        "import of torch": 1.0,
        "first step": 1.75,
        "all": 3.0,
    }


def test_ratios_are_those_of_the_same_turn() -> None:
    def turn(ddp_s: float, ratio: float) -> start_up.Turn:
        times = {DDP: ddp_s, WARM: ratio * ddp_s, COLD: 10 * ddp_s}
        return {way: {"plan": seconds / 2, "all": seconds} for way, seconds in times.items()}

    found = start_up.figures([turn(2.0, 1.1), turn(8.0, 1.2), turn(3.0, 1.3)])
    assert found[WARM]["to_ddp"]["median_ratio"] == pytest.approx(1.2)
    assert found[WARM]["all_s"] == pytest.approx([2.2, 9.6, 3.9])
    assert found[DDP]["median_s"] == {"plan": 1.5, "all": 3.0}
    assert start_up.format_way(found[WARM]) == "3.90 s, 1.20 (1.15 to 1.25) of DDP (plan 1.95)"


def test_the_age_counts_from_the_start_of_the_process() -> None:
    code = "import time; from benchmarks.start_up_job import age_s; time.sleep(0.3); print(age_s())"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert 0.3 <= float(done.stdout) < 60
