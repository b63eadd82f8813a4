"""Simulated peaks next to peaks measured on real processes.

    rows = compare(Job("mlp", num_devices=2, seeds=(0, 1)), timeout_s=120)

The measurement shares nothing with the simulation: ``allocations.c`` stands between
the processes and the C library and adds up what PyTorch's allocator asks for. It
sees every thread (a profiler of PyTorch sees those that it was started on, not the
ones of Gloo, which free tensors as well) and sizes as they are (resident memory
counts pages and what the C library keeps).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.memory.job import Job, Peak, step_settings
from benchmarks.memory.models import make
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.simulate import simulate_step

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("allocations.c")


@dataclass(frozen=True)
class Row:
    """One strategy on one rank."""

    model: str
    num_devices: int
    recompute: bool
    micro_batches: int
    stages: int
    schedule: str
    seed: int
    rank: int
    simulated_bytes: int
    measured_bytes: int
    highest_bytes: int  # measured, of the step with the most
    all_bytes: int  # measured, with what is not PyTorch's
    search_bytes: float  # the sum that the search uses

    @property
    def error(self) -> float:
        """Relative, positive where the simulation has more."""
        return self.simulated_bytes / self.measured_bytes - 1


def compare(job: Job, timeout_s: float) -> list[Row]:
    """Simulates and measures the strategies of a job, on all its ranks."""
    measured = run(job, timeout_s)
    model, args = make(job.model)
    captured = capture(model, args)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks have
    rows = []
    for index, seed in enumerate(job.seeds):
        plan = job.plan(captured, seed)
        sums = [plan.memory_bytes] * job.num_devices
        if isinstance(plan, StagedPlan):
            own = plan.devices_of_stage
            sums = [plan.memory_of_stages[rank // own] for rank in range(job.num_devices)]
        for rank in range(job.num_devices):
            profile = simulate_step(plan, captured, step_settings(job, rank))
            peak = measured[rank][index]
            assert peak.seed == seed
            rows.append(
                Row(
                    job.model,
                    job.num_devices,
                    job.recompute,
                    job.micro_batches,
                    job.stages,
                    job.schedule,
                    seed,
                    rank,
                    profile.peak_bytes,
                    peak.tensor_bytes,
                    peak.highest_bytes,
                    peak.all_bytes,
                    sums[rank],
                )
            )
    torch.set_num_threads(threads)
    return rows


def run(job: Job, timeout_s: float) -> list[list[Peak]]:
    """The measured peaks by rank.

    Raises:
        RuntimeError: a rank failed or took too long; with what it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        port = _free_port()
        ranks = [_start(job, rank, port, library) for rank in range(job.num_devices)]
        try:
            outputs = [process.communicate(timeout=timeout_s) for process in ranks]
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{job} did not end within {timeout_s} s") from error
        finally:
            for process in ranks:
                process.kill()
    for process, (_, errors) in zip(ranks, outputs, strict=True):
        if process.returncode != 0:
            raise RuntimeError(f"a rank of {job} ended with {process.returncode}:\n{errors}")
    return [[Peak(**p) for p in json.loads(out.splitlines()[-1])] for out, _ in outputs]


def build(folder: Path) -> Path:
    """Compile ``allocations.c`` into a library in this folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("measuring memory needs a C compiler (cc)")
    library = folder / "liballocations.so"
    command = [compiler, "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


def _start(job: Job, rank: int, port: int, library: Path) -> subprocess.Popen[str]:
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(job.num_devices),
    }
    command = [sys.executable, "-m", "benchmarks.memory.job", json.dumps(asdict(job))]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
