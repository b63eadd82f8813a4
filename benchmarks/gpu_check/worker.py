"""What the processes of the steps have in common; CUDA's own lines are here."""

from __future__ import annotations

import argparse
import json
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)


def arguments() -> argparse.Namespace:
    """``--device`` and ``--small``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--small", action="store_true")
    return parser.parse_args()


def first_device(kind: str) -> torch.device:
    """The one that all processes share. It is current before anything else asks for one:
    a mesh would take that of the local rank, which a machine with one GPU has not got."""
    torch.set_num_threads(1)
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; try --device cpu --small")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.cuda.init()
    return device


def join_over_gloo(kind: str) -> torch.device:
    """The process group of torchrun, over Gloo for tensors on CPUs and on GPUs: NCCL refuses
    several processes on one GPU."""
    device = first_device(kind)
    dist.init_process_group("cpu:gloo,cuda:gloo", timeout=TIMEOUT)
    return device


def report(passed: bool, **found: Any) -> None:
    """On the first rank: the line that the check reads."""
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps({"passed": passed, **found}), flush=True)


def said_by(error: BaseException) -> str:
    """The kind and the first lines of an error."""
    return f"{type(error).__name__}: {error}"[:600]
