"""A plan in a file means what it meant when it was written.

A plan holds configs by their numbers in the strategy space of its model. If the configs of some
operator become others, older files would silently mean other strategies: they must be refused.
"""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

import tensoropt_torch
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan.plan import FORMAT_VERSION
from tensoropt_torch.plan.space import make_planner
from tensoropt_torch.planner.task import PlanningTask
from tests.distributed.models import make

DEVICES = 4
# By model, the spaces of this version of the format.
VERSION = 7
DIGESTS = {
    "gpt_tied": "de39156957ab37de",
    "llama": "ac43653ccb4d7b70",
    "lstm": "df5494db9d649e93",
    "transformer": "f8e967a73d54450c",
    "resnet": "b8adb9dc7a39b5b7",
    "odd_channels": "1eab382c83cb312a",
    "odd_1009": "15b2183c4adf2b2e",
    "mixture": "0db40740a0fc6afe",
    "recommender": "417d0af21de63cf1",
    "routed_experts": "6c4dd3c7beb2a036",
    "fused": "e732f00822da17e7",
    "fused_otherwise": "061975bc94ac6951",
}


def digest(name: str) -> str:
    """Of all configs of all nodes, and of what nodes are connected to."""
    case = make(name, torch.float32)
    captured = capture(case.model, case.args, **case.keywords)
    task = PlanningTask(captured, tensoropt_torch.load_cluster("h100-8"), recompute=True)
    planner = make_planner(captured, task.settings(DEVICES))
    strategy = planner.random_strategy(0)
    space = [
        [(row["name"], row["configs"], row["runs_again"]) for row in planner.describe_nodes()],
        [(edge["source"], edge["target"]) for edge in planner.describe_edges(strategy)],
    ]
    return hashlib.sha256(json.dumps(space).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", DIGESTS)
def test_a_space_that_changes_has_another_version(name: str) -> None:
    assert FORMAT_VERSION == VERSION, "record the digests of the new version here"
    assert digest(name) == DIGESTS[name], (
        f"the strategy space of {name} is another one, so that plans of version {FORMAT_VERSION} "
        "would mean other strategies: raise FORMAT_VERSION in plan/plan.py, and record it and the "
        "new digests here"
    )
