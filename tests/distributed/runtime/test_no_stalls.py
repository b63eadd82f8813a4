"""More ranks than cores, late ranks, a slow link, overlap: no step waits for much longer than
the others. Threads of the network that keep the owner of a lock from running made steps of a
hundred times the median (docs/runtime.md)."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tensoropt_torch.runtime.host import scheduling

ROOT = Path(__file__).parents[3]
RANKS = 4
# A network of its own, whose loopback takes little more than a packet at once.
LIMIT = 'ip link set lo up && tc qdisc add dev lo root tbf rate "$0" burst 70kb latency 1s'
LINKS = {"loopback": (), "slow link": ("unshare", "--net", "sh", "-c", f'{LIMIT} && "$@"', "1gbit")}
# Other programs of the machine may make a step longer, too: by so many times, and by a while.
TIMES, WHILE_S = 5.0, 3.0


@cache
def is_possible(link: str) -> bool:
    try:
        return subprocess.run([*LINKS[link], "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def run_job(
    within: Sequence[str],
    arguments: Sequence[int],
    environment: Mapping[str, str],
    timeout_s: float,
) -> dict[str, dict[str, Any]]:
    """What ``stalls.py`` prints."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job = [f"--nproc-per-node={RANKS}", str(ROOT / "tests/distributed/stalls.py")]
    process = subprocess.Popen(
        [*within, *launcher, *job, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    result: dict[str, dict[str, Any]] = json.loads(output.splitlines()[-1])
    return result


def check(link: str, favoured: bool, arguments: Sequence[int], timeout_s: float) -> None:
    """``arguments``: layers, and steps of each plan."""
    if link == "slow link" and not is_possible(link):
        pytest.skip("needs the permission for network namespaces, ip and tc")
    if favoured and not scheduling.is_permitted():
        pytest.skip("needs the permission for negative nice values")
    environment = {scheduling.ASKED: "1" if favoured else "0"}
    found = run_job(LINKS[link], arguments, environment, timeout_s)
    assert len(found) == 3
    assert any(row["begun_ahead"] for row in found.values())
    assert any(row["replayed"] for row in found.values())
    for plan, row in found.items():
        times = row["step_s"]
        assert len(times) == arguments[1]
        assert row["collectives"] > arguments[1]
        median_s, longest_s = statistics.median(times), max(times)
        print(f"{link}, {plan}: median {median_s:.3f} s, longest {longest_s:.3f} s")
        assert longest_s < TIMES * median_s + WHILE_S, plan


@pytest.mark.parametrize(
    "link",
    [pytest.param(link, marks=() if link == "loopback" else pytest.mark.slow) for link in LINKS],
)
def test_no_step_takes_much_longer_than_the_others(link: str) -> None:
    check(link, False, (2, 30), 300)


@pytest.mark.slow
@pytest.mark.parametrize("favoured", [False, True], ids=["default", "favoured"])
def test_no_step_of_hundreds_takes_much_longer_than_the_others(favoured: bool) -> None:
    check("slow link", favoured, (6, 150), 1200)
