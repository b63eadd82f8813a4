"""Plans of small models against one process without a plan, on the device.

Loss, gradients, parameters after three steps and buffers have to be equal, as in
``tests/distributed/module/test_parity.py``, whose comparison this is. Several processes share the
device and speak over Gloo; one alone is what ``tensoropt_torch.init`` makes of it, NCCL on a
GPU, and its plans differ in what they recompute.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
import torch.distributed as dist

import tensoropt_torch
from benchmarks.gpu_check.worker import arguments, first_device, join_over_gloo, report, said_by
from tests.distributed.parity import Job, check

MODELS = ("gpt", "llama", "resnet", "transformer", "mixed", "lstm")
LOOK_UPS = ("recommender", "experts")  # where Transformers is installed
SMALL_MODELS = ("gpt",)
TOLERANCES = {"mixed": 1e-4}  # computes in float32 where others compute in float64


def job_of(model: str, device: torch.device, small: bool) -> Job:
    """A few strategies of each kind."""
    count = 2 if small else 4
    return Job(
        model,
        torch.float64,
        points=count,
        randoms=count,
        recompute=dist.get_world_size() == 1,
        tolerance=TOLERANCES.get(model, 0),
        device=device.type,
    )


def checked(model: str, device: torch.device, small: bool) -> dict[str, Any]:
    """How many strategies were run, and which of them are not equal."""
    try:
        count, wrong = check(job_of(model, device, small))
    except Exception as error:
        return {"strategies": 0, "wrong": [said_by(error)]}
    return {"strategies": count, "wrong": [text[:600] for text in wrong[:3]]}


def main() -> None:
    """Passes if all strategies of all models are equal on the first rank."""
    chosen = arguments()
    device = first_device(chosen.device)
    if "RANK" in os.environ:
        join_over_gloo(chosen.device)
    else:
        tensoropt_torch.init()
    models = SMALL_MODELS if chosen.small else MODELS
    if not chosen.small and importlib.util.find_spec("transformers"):
        models += LOOK_UPS
    found = {model: checked(model, device, chosen.small) for model in models}
    passed = all(row["strategies"] and not row["wrong"] for row in found.values())
    report(passed, processes=dist.get_world_size(), backend=dist.get_backend(), models=found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
