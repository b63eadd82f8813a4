"""How the search grows with layers, devices and configs, and what coarse spaces lose.

python -m benchmarks.paper growth losses
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks.models import catalogue
from benchmarks.models.catalogue import Example, tokens
from benchmarks.models.llama import Llama, LlamaConfig
from benchmarks.paper.setups import paper_cluster
from benchmarks.timed_search import SearchRun, timed_search
from tensoropt_torch.plan import default_max_configs
from tensoropt_torch.planner.search_settings import SearchSettings

ALL_CONFIGS = 10**6
DEVICES_OF_A_MACHINE = 8


def llama_of(layers: int, config: LlamaConfig, batch: int, length: int) -> Example:
    """The Llama with so many layers."""
    return Llama(replace(config, n_layer=layers)), tokens(batch, length)


@dataclass(frozen=True)
class Sizes:
    """What is varied, and what is kept while something else is varied.

    Attributes:
        loss_models: where coarse spaces are compared with whole ones.
        loss_configs: values of ``max_configs`` that are compared with all configs.
        loss_devices: where they are.
        order_devices: where the ordered space is compared with the full one.
    """

    layers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    devices: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    max_configs: tuple[int, ...] = (25, 50, 100, 200, 400)
    llama: LlamaConfig = field(default_factory=LlamaConfig)
    batch: int = 256
    length: int = 4096
    kept_layers: int = 4
    kept_devices: int = 16
    devices_for_configs: int = 64
    loss_models: Mapping[str, Callable[[], Example]] = field(
        default_factory=lambda: {
            "RNN": catalogue.rnn,
            "VGG16": catalogue.vgg16,
            "Transformer-S": catalogue.transformer_small,
        }
    )
    loss_configs: tuple[int, ...] = (50, 200)
    loss_devices: tuple[int, ...] = (16, 64)
    order_devices: tuple[int, ...] = (4, 8, 16)
    epsilon: float = 1e-2
    limit_s: float = 30.0

    def run(self, layers: int, devices: int) -> SearchRun:
        """Searching the Llama."""
        build = partial(llama_of, layers, self.llama, self.batch, self.length)
        return self.run_of(build, devices)

    def run_of(self, build: Callable[[], Example], devices: int) -> SearchRun:
        """Searching a model on machines of the paper's kind."""
        cluster = paper_cluster(max(2, devices // DEVICES_OF_A_MACHINE))
        search = SearchSettings(epsilon=self.epsilon)
        return SearchRun(build, cluster, devices, search=search, limit_s=self.limit_s)


def growth(sizes: Sizes) -> dict[str, Any]:
    """Time and memory of the search against layers, devices and configs."""
    layers = {n: sizes.run(n, sizes.kept_devices) for n in sizes.layers}
    devices = {n: sizes.run(sizes.kept_layers, n) for n in sizes.devices}
    fixed = sizes.run(sizes.kept_layers, sizes.devices_for_configs)
    configs = {n: replace(fixed, max_configs=n) for n in sizes.max_configs}
    return {
        "epsilon": sizes.epsilon,
        "limit_s": sizes.limit_s,
        "default_max_configs": default_max_configs(sizes.kept_devices),
        "layers": {"devices": sizes.kept_devices, "runs": _series(layers)},
        "devices": {"layers": sizes.kept_layers, "runs": _series(devices)},
        "max_configs": {
            "layers": sizes.kept_layers,
            "devices": sizes.devices_for_configs,
            "runs": _series(configs),
        },
    }


def _series(runs: Mapping[int, SearchRun]) -> list[dict[str, Any]]:
    records = []
    for size, run in runs.items():
        record = timed_search(run)
        record["num_points"] = len(record.pop("points", []))
        records.append({"size": size, **record})
    return records


def losses(sizes: Sizes) -> dict[str, Any]:
    """What coarse configs and ordered ones lose, as factors of cost."""
    coarse = [
        {"model": name, "devices": devices, **_coarse_loss(sizes, build, devices)}
        for name, build in sizes.loss_models.items()
        for devices in sizes.loss_devices
    ]
    ordered = [
        {"model": name, "devices": devices, **_ordered_loss(sizes.run_of(build, devices))}
        for name, build in sizes.loss_models.items()
        for devices in sizes.order_devices
    ]
    return {"epsilon": sizes.epsilon, "coarse": coarse, "ordered": ordered}


def _coarse_loss(sizes: Sizes, build: Callable[[], Example], devices: int) -> dict[str, Any]:
    run = sizes.run_of(build, devices)
    whole = timed_search(replace(run, max_configs=ALL_CONFIGS))
    coarse = {n: timed_search(replace(run, max_configs=n)) for n in sizes.loss_configs}
    return {
        "all_s": whole.get("search_s"),
        "by_max_configs": [
            {"max_configs": n, "complete": r.get("complete"), **_loss(r, whole)}
            for n, r in coarse.items()
        ],
    }


def _ordered_loss(run: SearchRun) -> dict[str, Any]:
    full = timed_search(replace(run, space="full", max_configs=ALL_CONFIGS))
    ordered = timed_search(replace(run, space="ordered", max_configs=ALL_CONFIGS))
    return {"full_s": full.get("search_s"), **_loss(ordered, full)}


def _loss(part: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, float | None]:
    found = "points" in part and "points" in whole
    factor = cover_factor(part["points"], whole["points"]) if found else None
    return {"search_s": part.get("search_s"), "factor": factor}


def cover_factor(points: Sequence[Sequence[float]], others: Iterable[Sequence[float]]) -> float:
    """The least factor f so that for each of ``others`` some point has at most f
    times its memory and f times its time; 1 if they are covered as they are."""

    def factor(memory: float, time_s: float) -> float:
        return min(max(p[0] / memory, p[1] / time_s) for p in points)

    return max(1.0, max(factor(memory, time_s) for memory, time_s in others))
