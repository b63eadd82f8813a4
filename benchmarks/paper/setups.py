"""What is planned: the paper's models and clusters, and newer machines beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache

import torch

from benchmarks.models import catalogue
from benchmarks.models.catalogue import Example
from tensoropt_torch.config import load_cluster
from tensoropt_torch.config.cluster import Cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.planner.memory_limits import DEFAULT_MEMORY_FRACTION
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask

PRESET = "paper-2x8-v100"

GIB = 2**30
# V100s were sold with 16 and with 32 GiB; plans may use as much of it as by default.
DEVICE_BYTES = 32 * GIB
MEMORY_LIMITS: Mapping[str, float] = {
    "16 GiB": DEFAULT_MEMORY_FRACTION * 16 * GIB,
    "32 GiB": DEFAULT_MEMORY_FRACTION * 32 * GIB,
}


@dataclasses.dataclass(frozen=True)
class Setup:
    """A model and how it is trained."""

    title: str
    build: Callable[[], Example]
    optimizer: str


# The optimizer that is customary for the kind of model; 108 GiB of parameters
# with a state of any kind would not fit 16 devices.
SETUPS: Mapping[str, Setup] = {
    "rnn": Setup("RNN", catalogue.rnn, "sgd"),
    "wide_resnet": Setup("WideResNet", catalogue.wide_resnet, "momentum"),
    "transformer": Setup("Transformer", catalogue.transformer, "adam"),
    "transformer-s": Setup("Transformer-S", catalogue.transformer_small, "adam"),
    "vgg16": Setup("VGG16", catalogue.vgg16, "momentum"),
}


@cache
def captured_model(build: Callable[[], Example]) -> CapturedModel:
    """The graph of the model, without memory for its tensors."""
    with torch.device("meta"):
        model, args = build()
    return capture(model, args)


def task_of(setup: Setup, search: SearchSettings, cluster: Cluster | None = None) -> PlanningTask:
    """Planning the model on the paper's cluster, or another one."""
    return PlanningTask(
        captured_model(setup.build),
        paper_cluster() if cluster is None else cluster,
        optimizer=setup.optimizer,
        search=search,
    )


def paper_cluster(machines: int = 2) -> Cluster:
    """The paper's machines, as many as are asked for."""
    cluster = load_cluster(PRESET)
    device = dataclasses.replace(cluster.device, name="V100 SXM2 32 GB", memory_bytes=DEVICE_BYTES)
    return with_machines(dataclasses.replace(cluster, device=device), machines)


def h100_cluster(machines: int) -> Cluster:
    """So many DGX H100."""
    cluster = with_machines(load_cluster("h100-2x8"), machines)
    text = f"{machines} machines with 8 H100 each"
    return dataclasses.replace(cluster, name=f"h100-{machines}x8", description=text)


def with_machines(cluster: Cluster, count: int) -> Cluster:
    """The cluster with so many machines."""
    levels = (dataclasses.replace(cluster.levels[0], count=count), *cluster.levels[1:])
    return dataclasses.replace(cluster, levels=levels)


def with_bandwidth(cluster: Cluster, level: int, factor: float) -> Cluster:
    """The cluster with so much times the bandwidth at one level (0: between machines)."""
    levels = list(cluster.levels)
    bandwidth = factor * levels[level].bandwidth_bytes_per_s
    levels[level] = dataclasses.replace(levels[level], bandwidth_bytes_per_s=bandwidth)
    return dataclasses.replace(cluster, levels=tuple(levels))
