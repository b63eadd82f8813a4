"""What the ranks of a plan run, looked at in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import fx
from torch.distributed.tensor import Replicate, Shard

from tensoropt_torch.config import load_cluster
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.meshes import mesh_axes_of
from tensoropt_torch.space.search_space import make_space
from tests.distributed.models import make

CPU = torch.device("cpu")
DEVICES = 4


def task_of(name: str) -> PlanningTask:
    case = make(name, torch.float32)
    return PlanningTask(capture(case.model, case.args, **case.keywords), load_cluster("cpu"))


def part_of(plan: Plan, rank: int) -> RankPart:
    assert plan.captured is not None
    return RankPart(plan, plan.captured, rank)


def random_plans(name: str, count: int) -> Iterator[Plan]:
    task = task_of(name)
    settings = task.settings(DEVICES)
    space = make_space(task.captured, settings)
    for seed in range(count):
        yield Plan.of(space, settings, task.captured, space.random_strategy(seed))


def named_groups(graph: fx.GraphModule) -> set[str]:
    names: set[str] = set()

    def visit(value: object) -> None:
        if isinstance(value, str) and value.startswith("group "):
            names.add(value)
        if isinstance(value, (list, tuple)):
            for item in value:
                visit(item)

    for node in graph.graph.nodes:
        visit(node.args)
    return names


@pytest.mark.parametrize("name", ["gpt", "resnet", "lstm"])
def test_the_graph_names_the_groups_that_are_asked_for(name: str) -> None:
    for plan in random_plans(name, 3):
        for rank in (0, DEVICES - 1):
            part = part_of(plan, rank)
            graph = part.emitter(CPU, lambda axes: f"group {axes}").emit()
            assert named_groups(graph) == {f"group {axes}" for axes in part.axis_sets}


def test_shapes_and_placements_of_gathered_parameters() -> None:
    (baseline,) = find_baselines(task_of("mlp"), DEVICES, ["ZeRO-3"])
    part = part_of(baseline.plan(0), rank=1)
    assert part.sizes == (2, 2)
    split = 0
    for source in part.captured.parameters:
        whole = source.placeholder.meta["val"]
        placements = part.placements(source)
        assert len(placements) == 2
        shards = [p for p in placements if isinstance(p, Shard)]
        assert all(isinstance(p, Replicate) for p in placements if p not in shards)
        shape = part.local_shape(source)
        assert whole.numel() == torch.Size(shape).numel() * 2 ** len(shards)
        split += bool(shards)
    assert split > 0


@pytest.mark.parametrize(("name", "others"), [("gpt", 1), ("resnet", 0)])
def test_one_call_sends_the_gradients_of_parameters_under_data_parallelism(
    name: str, others: int
) -> None:
    """But for positions, which all rows share: theirs is summed where they are expanded."""
    (baseline,) = find_baselines(task_of(name), DEVICES, ["data parallel"])
    part = part_of(baseline.plan(len(baseline.points) - 1), rank=1)
    graph = part.emitter(CPU, str).emit().graph
    ops = torch.ops.tensoropt
    (call,) = graph.find_nodes(op="call_function", target=ops.reshard_gradients.default)
    assert not graph.find_nodes(op="call_function", target=ops.reshard_parameter.default)
    xs, *_, slots = call.args
    assert len(xs) == len(part.captured.parameters) - others
    assert list(slots) == list(range(len(xs)))


def test_a_single_device_is_a_mesh_of_one_axis() -> None:
    assert mesh_axes_of(()) == ((1,), ("axis0",))
    assert mesh_axes_of((2, 3)) == ((2, 3), ("axis0", "axis1"))
