"""The check for machines with one GPU: its steps on a CPU, and what it does when they fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check.__main__ import check, run
from benchmarks.gpu_check.steps import ROOT, Step, steps_of
from tests.test_docs import NOT_RUN

STEPS = [step.name for step in steps_of("cpu", small=True)]
SLOW = ("build", "step-time", "one-rank", "parity-4")


def checked(folder: Path, *arguments: str) -> dict[str, Any]:
    """What the steps found on a CPU, by name; all have to pass."""
    output = folder / "gpu_check.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--small"]
    command += ["--output", str(output), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(output.read_text())["steps"]
    return found


def test_quick_steps_pass_on_a_cpu(tmp_path: Path) -> None:
    names = [name for name in STEPS if name not in SLOW]
    found = checked(tmp_path, "--steps", *names)
    assert list(found) == names
    rights = [r for row in found["collectives"]["collectives"].values() for r in row.values()]
    assert len(rights) == 28 and set(rights) == {"right"}
    for name, processes in (("parity-1", 1), ("parity-2", 2)):
        assert found[name]["processes"] == processes
        assert found[name]["models"]["gpt"]["strategies"] >= 3
    assert found["speeds"]["measured"]["matmul_flops_per_s"]["float32"] > 1e8


@pytest.mark.slow
def test_slow_steps_pass_on_a_cpu(tmp_path: Path) -> None:
    found = checked(tmp_path, "--limit", "560", "--steps", *SLOW)
    assert list(found) == [name for name in STEPS if name in SLOW]
    for ways in found["step-time"]["precisions"].values():
        assert list(ways) == ["eager", "compiled", "ours", "ours_compiled"]
        assert all(row["step_s"] > 0 and row["peak_bytes"] > 0 for row in ways.values())
    (model,) = found["one-rank"]["models"].values()
    assert model["mean_error_of_memory"] < 0.001


def test_on_a_gpu_the_same_steps_are_run() -> None:
    on_cpu, on_gpu = steps_of("cpu", small=False), steps_of("cuda", small=False)
    assert [step.name for step in on_gpu] == [step.name for step in on_cpu]
    for here, there in zip(on_cpu, on_gpu, strict=True):
        assert [word.replace("cuda", "cpu") for word in there.command] == here.command


def step(code: str, name: str = "it", limit_s: float = 20.0, needs: tuple[str, ...] = ()) -> Step:
    return Step(name, "something", [sys.executable, "-c", code], limit_s, needs)


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        ("raise SystemExit('no GPU')", "status 1", "no GPU"),
        ("import os; os.kill(os.getpid(), 11)", "status -11", ""),
        ("print('not JSON')", "status 0", "not JSON"),
        ("print('[1]')", "status 0", "[1]"),
        ("import time; time.sleep(60)", "did not end within 1 s", ""),
    ],
)
def test_a_step_that_fails_says_why(code: str, reason: str, words: str) -> None:
    record = run(step(code), 1.0 if "sleep" in code else 20.0)
    assert not record["passed"]
    assert record["reason"] == reason and words in record["last_words"]


def test_processes_of_a_step_end_with_it(tmp_path: Path) -> None:
    marker = tmp_path / "alive"
    child = f"import time; time.sleep(3); open({str(marker)!r}, 'w')"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert not run(step(code), 1.0)["passed"]
    subprocess.run([sys.executable, "-c", "import time; time.sleep(3)"], timeout=20)
    assert not marker.exists()


def test_a_step_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    passing = 'print(\'{"passed": true, "figure": 3}\')'
    steps = [
        step("raise SystemExit(1)", "first"),
        step(passing, "second"),
        step(passing, "third", needs=("first",)),
    ]
    output = tmp_path / "found.json"
    assert not check(steps, 60.0, output, {"device": "none"})
    found = json.loads(output.read_text())
    assert found["device"] == "none"
    assert not found["steps"]["first"]["passed"]
    assert found["steps"]["second"] == {
        "passed": True,
        "figure": 3,
        "seconds": found["steps"]["second"]["seconds"],
    }
    assert found["steps"]["third"]["reason"] == "not run, since first failed"
    assert check(steps[1:2], 60.0, output, {})


def test_steps_without_time_are_told(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    assert not check([step("print(1)")], 0.0, output, {})
    reason = json.loads(output.read_text())["steps"]["it"]["reason"]
    assert reason == "not run: no time was left"


def test_the_command_of_the_documents_is_there() -> None:
    assert "make gpu-check" in NOT_RUN
    assert "\ngpu-check:" in (ROOT / "Makefile").read_text()
