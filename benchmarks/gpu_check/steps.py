"""The steps of the check, in the order in which they are run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "benchmarks.gpu_check"


@dataclass(frozen=True)
class Step:
    """A process that prints what it found as JSON on its last line, with ``passed``.

    Attributes:
        name: what it is called.
        shows: what one learns from it.
        command: what is run, in the root of the checkout.
        limit_s: the longest it may take.
        needs: steps without which it is not run.

    """

    name: str
    shows: str
    command: list[str]
    limit_s: float
    needs: tuple[str, ...] = ("build", "doctor")


def steps_of(device: str, small: bool) -> list[Step]:
    """All steps on a type of device; ``small`` leaves out models and repetitions."""
    options = ["--device", device, *(["--small"] if small else [])]

    def module(name: str, processes: int = 1) -> list[str]:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        ranks = [*launcher, f"--nproc-per-node={processes}"] if processes > 1 else []
        return [sys.executable, *ranks, "-m", f"{PACKAGE}.{name}", *options]

    network = "NCCL" if device == "cuda" else "Gloo"
    build = [sys.executable, "-m", f"{PACKAGE}.build"]
    return [
        Step("build", "the libraries, from this checkout", build, 300.0, ()),
        Step("doctor", "what is missing here", module("machine_state"), 60.0, ("build",)),
        Step("collectives", "2 processes, one device, Gloo", module("collectives", 2), 60.0),
        Step("parity-2", "plans of 2 processes against one", module("equal_to_one", 2), 120.0),
        Step("parity-1", f"plans of one process, {network}", module("equal_to_one"), 90.0),
        Step(
            "step-time", "one device: as it is, compiled, CUDA graphs", module("step_time"), 300.0
        ),
        Step("one-rank", "memory and operators of a rank", module("one_rank_of_many"), 180.0),
        Step("speeds", "the device beside its description", module("speeds"), 60.0),
        Step("parity-4", "plans of 4 processes against one", module("equal_to_one", 4), 120.0),
    ]
