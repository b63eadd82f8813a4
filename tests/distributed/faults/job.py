"""A job of some processes that plans, trains and keeps checkpoints, as programs do: what a fault is
put into. Each process says what it does as lines of JSON on its output."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import Checkpoints, elastic
from tests.distributed.faults.injected import ACTIONS
from tests.distributed.faults.points import Point, Points

STAGES = ("start", "plan", "load", "step", "save")
STEPS, EVERY = 6, 2
TIMEOUT_S = 15.0


class Model(nn.Module):
    """A tied weight and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.norm = nn.BatchNorm1d(16)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        return F.cross_entropy(self.head(self.hidden(x).tanh()), targets)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """From the program's random state, which a checkpoint keeps."""
    tokens = torch.randint(0, 24, (2, 12))
    return tokens[0], tokens[1]


def say(**event: Any) -> None:
    # In one piece: threads may say something at the same time.
    sys.stdout.write(json.dumps({**event, "at": time.monotonic()}) + "\n")
    sys.stdout.flush()


def main(given: dict[str, Any]) -> None:
    """What a rank does.

    Args:
        given: ``folder`` of the run, ``steps``; whether it ``counts`` its calls; ``fault``, where
            this rank has one: its ``kind``, ``stage`` and ``number``, and what ``injected.py``
            takes.
    """
    fault = given.get("fault")

    def begin(function: str) -> None:
        say(fault=fault["kind"], where=function)
        ACTIONS[fault["kind"]](fault)

    wanted = None if fault is None else Point(fault["stage"], fault["number"])
    alone = fault is not None and fault["kind"] == "exception"
    points = Points(wanted, begin, alone, given.get("counts", False))
    _train(given["folder"], given["steps"], points)
    say(done=True, counts=dict(points.counts))


def _train(folder: str, steps: int, points: Points) -> None:
    torch.set_num_threads(1)
    with points.stage("start"):
        tensoropt_torch.init("gloo", timeout_s=TIMEOUT_S)
    torch.manual_seed(0)
    example = tensoropt_torch.Example(Model().double(), batch())
    with points.stage("plan"):
        plan = elastic.plan_of_job(folder, example)
    with points.stage("start"):
        parallel = tensoropt_torch.parallelize(example, plan)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-2, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with points.stage("load"):
        checkpoints = Checkpoints(folder, parallel, optimizer, scheduler=scheduler)
        begin = checkpoints.load()
    say(began=begin)
    saved = begin
    for step in range(begin, steps):
        with points.stage("step"):
            loss = parallel(*batch())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        say(step=step, loss=float(loss.detach()))
        if (step + 1) % EVERY == 0:
            with points.stage("save"):
                checkpoints.save(step + 1)  # what was begun before is whole
            say(saved=saved)
            saved = step + 1
    with points.stage("save"):
        checkpoints.wait()
    say(saved=saved)
    with points.stage("step"):
        norms = [float(p.full_tensor().norm()) for p in parallel.parameters()]  # type: ignore[attr-defined]
    say(norms=norms)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(json.loads(sys.argv[1]))
