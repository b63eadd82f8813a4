"""What the cost model says of a published row.

The strategy is that of the row: fully sharded data parallelism is the baseline ``ZeRO-3`` at its
smallest point, where parameters are gathered again in backward; ZeRO-2 is its fastest; a sharded
optimizer is the fastest of data parallelism. ``none`` keeps all activations, ``full`` is the
smallest point with recomputation. *Selective* recomputation of others is another set of operators
than ours: such rows get both ends. Steps run as many micro-batches as the row's, each of which
gathers parameters and reduces gradients, and one update. Rows that are compiled are predicted so,
and as if they were not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.published.rows import Row, cluster_of, example_of
from tensoropt_torch import Cluster
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.optimizer_model import OptimizerModel
from tensoropt_torch.planner.task import PlanningTask

NVLINK_LATENCY_S = 5e-6  # as was assumed
OPTIMIZER = OptimizerModel("adamw", "float32", True)  # 16 bytes for each parameter
NAMES = {"optimizer": "data parallel"}  # of baselines, by sharding; of others ZeRO-3
AT_ITS_FASTEST = ("ZeRO-2", "optimizer")
RECOMPUTES = {"none": (False,), "not said": (False,), "full": (True,), "selective": (False, True)}

Point = tuple[float, float]  # bytes, seconds


def strategy_point(task: PlanningTask, row: Row, recompute: bool) -> Point | None:
    """The row's strategy; None if the space has none."""
    name = NAMES.get(row.sharding, "ZeRO-3")
    (baseline,) = find_baselines(replace(task, recompute=recompute), row.devices, (name,))
    if not baseline.points:
        return None
    fastest = row.sharding in AT_ITS_FASTEST and not recompute
    return baseline.points[-1 if fastest else 0]


def our_best(task: PlanningTask, row: Row) -> Point | None:
    """The fastest of the whole frontier within the device's memory, with recomputation where the
    row has it."""
    task = replace(task, recompute=RECOMPUTES[row.recompute][-1])
    limit = task.default_memory_limit
    frontier = find_frontier(task, row.devices, [limit])
    if frontier.smallest.memory_bytes > limit:
        return None
    point = frontier.at(limit)
    return point.memory_bytes, point.time_s


def with_fast_attention(cluster: Cluster) -> Cluster:
    """With attention as fast as matrix products."""
    device = cluster.device
    device = replace(device, efficiency=replace(device.efficiency, attention=None))
    return replace(cluster, device=device)


def with_assumed_links(cluster: Cluster) -> Cluster:
    """With the links inside of machines as data sheets say, for all collectives."""
    *outer, nvlink = cluster.levels
    nvlink = replace(nvlink, latency_s=NVLINK_LATENCY_S, collectives={})
    return replace(cluster, levels=(*outer, nvlink))


def predicted(row: Row, with_best: bool) -> dict[str, Any]:
    """Tokens per second and device, and GiB: of the row's strategy, one or two ends of it, also
    before figures were changed and with those of the links alone, if it is compiled as if it were
    not, and if asked for of the best
    that the search finds for the same number of micro-batches."""
    model, tokens = example_of(row)
    captured = micro_batched(capture(model, tokens), row.accumulation)
    cluster = cluster_of(row)
    task = PlanningTask(captured, cluster, optimizer=OPTIMIZER)
    shares = row.batch * row.sequence / row.devices

    def figures(point: Point | None) -> dict[str, float] | None:
        if point is None:
            return None
        return {"tokens_per_s": shares / point[1], "memory_gib": point[0] / 2**30}

    parameters = {id(p): p for p in model.parameters()}.values()
    layers = getattr(model, "blocks", None) or model.layers
    width = max(
        p.shape[-1] for name, p in model.named_parameters() if "norm" in name or "ln" in name
    )
    published = row.tokens_per_s(sum(p.numel() for p in parameters), len(layers), width)

    def ends(cluster: Cluster, compiled: bool) -> list[dict[str, float] | None]:
        own = replace(task, cluster=cluster, compiled=compiled)
        return [figures(strategy_point(own, row, r)) for r in RECOMPUTES[row.recompute]]

    found = {
        "published": {"tokens_per_s": published, "memory_gib": row.memory_gib},
        "before": ends(with_assumed_links(with_fast_attention(cluster)), False),
        "links": ends(with_fast_attention(cluster), False),
        "not compiled": ends(cluster, False),
    }
    found["predicted"] = ends(cluster, True) if row.compile else found["not compiled"]
    return found | ({"our_best": figures(our_best(task, row))} if with_best else {})
