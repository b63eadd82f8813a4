"""A job that loses a process goes on with fewer, under another plan."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).parent / "killed_job.py"
STEP = re.compile(r"step (\d+): loss ([\d.]+), (\d+) processes")
EVENT = re.compile(r"at ([\d.]+): (\w+)")
NEVER = "-1"


def launch(home: Path, *arguments: str, status: int = 0) -> str:
    """What the command prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TENSOROPT_HOME": str(home),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tensoropt_torch.elastic", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stdout[-4000:]
    return done.stdout


def steps_of(output: str) -> list[tuple[int, str, int]]:
    return [(int(step), loss, int(count)) for step, loss, count in STEP.findall(output)]


@pytest.mark.slow
def test_one_of_four_is_killed_and_three_go_on_as_a_run_resumed_alike(tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = [str(JOB), str(run)]
    output = launch(tmp_path, "--processes", "1:4", *job, "10", "2", "6")
    assert "that of rank 2 was killed by SIGKILL; starting again with 3" in output
    steps = steps_of(output)
    before = [step for step in steps if step[2] == 4]
    after = [step for step in steps if step[2] == 3]
    assert len(before) + len(after) == len(steps)
    assert [step for step, *_ in before] == [*range(6)]
    begin = after[0][0]
    assert begin in (5, 6)  # the checkpoint of the last step may have been half
    assert [step for step, *_ in after] == [*range(begin, 10)]
    # The same again: 4 processes until there, and 3 that are started from the checkpoint.
    shutil.rmtree(run)
    launch(tmp_path, "--processes", "4", *job, str(begin), NEVER, NEVER)
    resumed = steps_of(launch(tmp_path, "--processes", "3", *job, "10", NEVER, NEVER))
    assert resumed == after
    plans = sorted(path.name.split("-")[0] for path in (run / "plans").iterdir())
    assert plans == ["1", "2", "3", "4"]
    events = [what for _, what in EVENT.findall(output)]
    assert events.count("joined") == events.count("loaded") == 2


def test_one_process_that_fails_ends_with_a_status_and_what_it_was(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import os, sys\nprint(os.environ['WORLD_SIZE'])\nsys.exit(3)\n")
    output = launch(tmp_path, "--processes", "1:2", str(script), status=1)
    assert "of 2 processes, that of rank" in output
    assert "ended with 3; starting again with 1" in output
    assert "of 1 processes, that of rank 0 ended with 3; no restarts are left" in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--processes", "0:2", "x.py"], "argument --processes"),
        (["--processes", "3:2", "x.py"], "argument --processes"),
        (["--processes", "a", "x.py"], "argument --processes"),
        (["--processes", "2", "x.py"], "'x.py' is no file"),
        (["--processes", "2", "--max-restarts", "-1", __file__], "--max-restarts -1"),
    ],
)
def test_arguments_that_make_no_sense_are_one_line(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    output = launch(tmp_path, *arguments, status=2)
    assert says in output.splitlines()[-1]
    assert "Traceback" not in output
