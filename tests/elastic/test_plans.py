"""Plans of a job, kept in its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tensoropt_torch import Cluster, StagedPlan, load_cluster, parallelize
from tensoropt_torch.elastic import plan_of_job
from tests.distributed.harness import run_ranks

HERE = "tests.elastic.test_plans"


def slow_cluster() -> Cluster:
    """Devices between which little is sent in a step's time."""
    cluster = load_cluster("cpu")
    inner = replace(cluster.levels[-1], count=1)
    slow: dict[str, Any] = {"bandwidth_bytes_per_s": 1e6, "latency_s": 1e-5, "collectives": {}}
    outer = replace(inner, name="machine", count=2, **slow)
    return replace(cluster, levels=(outer, inner))


def planned(folder: str) -> tuple[list[str], bool, float]:
    """Hashes of the plans of two starts, whether they are in stages, and a loss."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)))
    batch = (torch.ones(16, 256),)
    keywords: dict[str, Any] = {"cluster": slow_cluster(), "max_stages": 2, "max_micro_batches": 4}
    keywords["measure"] = False
    given: dict[str, Any] = {"loss_fn": nn.MSELoss(), "targets": (torch.zeros(16, 256),)}
    first, again = (
        plan_of_job(folder, model, batch, memory="sums", memory_limit=3e6, **given, **keywords)
        for _ in range(2)
    )
    loss = parallelize(model, again, batch, **given)(*batch, *given["targets"])
    loss.backward()
    in_stages = isinstance(first, StagedPlan) and isinstance(again, StagedPlan)
    return [first.hash, again.hash], in_stages, float(loss.detach())


def test_plans_in_stages_are_kept(tmp_path: Path) -> None:
    for hashes, in_stages, loss in run_ranks(2, f"{HERE}:planned", str(tmp_path)):
        assert hashes[0] == hashes[1]
        assert in_stages and loss > 0
