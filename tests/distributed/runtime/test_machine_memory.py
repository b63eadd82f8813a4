"""Processes on CPUs plan for their share of the memory of their machine."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch.config import load_cluster, machine_memory
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.runtime.test_machine_memory"


def device_of(cluster: str | None) -> dict[str, Any]:
    model, args = nn.Linear(8, 8), (torch.zeros(8, 8),)
    plan = tensoropt_torch.find_strategy(
        model, args, loss_fn=torch.mean, measure=False, cluster=cluster
    )
    device: dict[str, Any] = plan.settings.cluster["device"]
    return device


def test_the_memory_of_the_machine_is_shared() -> None:
    memory_bytes, source = machine_memory()
    for device in run_ranks(2, f"{HERE}:device_of", None, 60):
        assert device["memory_bytes"] == memory_bytes // 2
        assert f"({source}) shared by 2 processes" in device["source"]


def test_a_preset_that_is_named_is_taken_as_it_is() -> None:
    for device in run_ranks(2, f"{HERE}:device_of", "cpu", 60):
        assert device["memory_bytes"] == load_cluster("cpu").device.memory_bytes


def test_without_a_job_plans_do_not_depend_on_the_machine() -> None:
    assert device_of(None) == device_of("cpu")
