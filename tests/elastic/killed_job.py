"""examples/elastic.py, in which one process is killed; says when what happens.

killed_job.py FOLDER STEPS RANK STEP     # that rank, before that step of the first start
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

import tensoropt_torch
from tensoropt_torch import elastic

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic.py"


def say(what: str) -> None:
    print(f"at {time.time():.3f}: {what}", flush=True)


def told(function: Any, what: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if dist.is_initialized() and dist.get_rank() == 0:
            say(what)
        return result

    return call


def main() -> None:
    folder, steps, rank, step = sys.argv[1], *map(int, sys.argv[2:])
    own = runpy.run_path(str(EXAMPLE))
    given = own["batch"]
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    def batch(number: int) -> Any:
        if (dist.get_rank(), number) == (rank, step) and is_first and batch.trains:
            say("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return given(number)

    batch.trains = False  # type: ignore[attr-defined]
    load = tensoropt_torch.Checkpoints.load

    def loaded(checkpoints: Any) -> int:
        begin = load(checkpoints)
        batch.trains = True  # type: ignore[attr-defined]
        return begin

    tensoropt_torch.init = told(tensoropt_torch.init, "joined")
    elastic.plan_of_job = told(elastic.plan_of_job, "planned")
    tensoropt_torch.parallelize = told(tensoropt_torch.parallelize, "made")
    tensoropt_torch.Checkpoints.load = told(loaded, "loaded")  # type: ignore[method-assign]
    if os.environ["RANK"] == "0":
        say("imported")
    train = own["train"]
    train.__globals__["batch"] = batch
    train(folder, steps)


if __name__ == "__main__":
    main()
