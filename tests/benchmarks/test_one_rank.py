"""One rank of several whose other ranks are made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "one_rank.py"), *arguments]
    command += ["--output", str(folder / "one_rank.json")]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=threads, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_memory_and_operators_are_predicted_and_measured(tmp_path: Path) -> None:
    arguments = ("--models", "llama", "--ranks", "4", "--device", "cpu", "--small")
    done = run(tmp_path, *arguments, "--strategies", "1", "--budget", "5")
    assert done.returncode == 0, done.stderr
    ((name, found),) = json.loads((tmp_path / "one_rank.json").read_text()).items()
    assert name.endswith("1 of 4, llama, small")
    assert [row["plan"] for row in found["plans"]] == ["smallest", "fastest", "random, seed 0"]
    assert found["mean_error_of_memory"] < 0.001
    operators = found["operators"]
    assert operators["measured"] > 20
    assert operators["neighbours"]["median_error"] < operators["volume over rates"]["median_error"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "no GPU" in done.stderr and "--device cpu" in done.stderr
