"""Two machines, each a network namespace of its own with a link between them, train together.

The namespaces end with the processes that hold them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.distributed.programs.test_examples import ROOT, assert_alike, run_single

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = "29500"  # of a network that nothing else uses
DEVICE = "net0"
WAIT_S = 280.0


@cache
def is_possible() -> bool:
    try:
        with machines():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def machines() -> Iterator[list[list[str]]]:
    """For each machine what is written before a command to run it there."""
    with ExitStack() as stack:
        holders = [stack.enter_context(namespace()) for _ in ADDRESSES]
        pids = [str(holder.pid) for holder in holders]
        ends = [[DEVICE, "netns", pid] for pid in pids]
        done = ["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]]
        subprocess.run(done, check=True, capture_output=True)
        within = [["nsenter", "--target", pid, "--net"] for pid in pids]
        for prefix, address in zip(within, ADDRESSES, strict=True):
            for command in (
                ["addr", "add", f"{address}/24", "dev", DEVICE],
                ["link", "set", "lo", "up"],
                ["link", "set", DEVICE, "up"],
            ):
                subprocess.run([*prefix, "ip", *command], check=True, capture_output=True)
        yield within


@contextmanager
def namespace() -> Iterator[subprocess.Popen[str]]:
    """A process in a network of its own, as long as this lasts."""
    command = ["unshare", "--net", "sh", "-c", "echo ready; exec sleep 600"]
    holder = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise OSError("no network namespaces")
        yield holder
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.communicate()


def meeting(kind: str, machine: int) -> list[str]:
    """How the machines find each other: as docs/several-machines.md has it."""
    if kind == "static":
        return [f"--node-rank={machine}", f"--master-addr={ADDRESSES[0]}", f"--master-port={PORT}"]
    return [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}",
        "--rdzv-id=job",
        # The name of the machine is that of both, and has none of their addresses.
        f"--rdzv-conf=is_host={1 - machine}",
        f"--local-addr={ADDRESSES[machine]}",
    ]


def run_on(within: list[list[str]], kind: str, folder: Path, script: list[str]) -> list[list[str]]:
    """The lines that the script prints on each machine."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": DEVICE,
    }
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    jobs = [
        subprocess.Popen(
            [*prefix, *launch, *meeting(kind, machine), *script],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for machine, prefix in enumerate(within)
    ]
    end = time.monotonic() + WAIT_S
    try:
        outputs = [job.communicate(timeout=end - time.monotonic()) for job in jobs]
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()
    for job, (_, errors) in zip(jobs, outputs, strict=True):
        assert job.returncode == 0, errors[-4000:]
    return [output.splitlines() for output, _ in outputs]


@pytest.mark.parametrize("kind", ["static", pytest.param("c10d", marks=pytest.mark.slow)])
def test_two_machines_train_as_one_process(kind: str, tmp_path: Path) -> None:
    if not is_possible():
        pytest.skip("needs the permission for network namespaces, unshare, nsenter and ip")
    expected = run_single("gan", tmp_path, "10")
    with machines() as within:
        for found in run_on(within, kind, tmp_path, [str(ROOT / "examples/gan.py"), "10"]):
            assert_alike(found, expected, 1e-3)


def test_the_documented_options_are_those_of_the_test() -> None:
    page = (ROOT / "docs/several-machines.md").read_text()
    for kind in ("static", "c10d"):
        for option in meeting(kind, 0):
            assert re.search(rf"{option.partition('=')[0]}[ =]", page), option
    assert "GLOO_SOCKET_IFNAME" in page
