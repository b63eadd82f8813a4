"""A process whose last collective has just ended exits as it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.harness import free_port

# The interpreter keeps its lock from the last collective to its end, and no other library does
# anything there. Without what the package does about every second of such runs is aborted.
PROGRAM = """
import atexit
import importlib
import sys
import torch.distributed as dist
from tensoropt_torch.runtime.host import at_exit

rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
atexit._clear()
importlib.reload(at_exit)
sys.setswitchinterval(100)
items = [None] * 2
for _ in range(20):
    dist.all_gather_object(items, rank)
"""


def run(folder: Path) -> list[int]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    port = str(free_port())
    ranks = [
        subprocess.Popen([sys.executable, str(program), str(rank), port], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        return [rank.wait(60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@pytest.mark.parametrize("runs", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_threads_of_the_network_do_not_abort_a_process_that_ends(tmp_path: Path, runs: int) -> None:
    for _ in range(runs):
        assert run(tmp_path) == [0, 0]
