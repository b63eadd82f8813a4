"""Recomputation on one device: our frontier beside the partitioner of PyTorch's compiler.

    python benchmarks/partitioner.py

``torch._functorch.partitioners.min_cut_rematerialization_partition`` splits a joint graph of
forward and backward for ``activation_memory_budget`` from 0.1 to 1. It gets our prices of
operators in place of its own estimate of time, and keeps what the loss hands to its own
backward, which would be made again at once. What it keeps is counted in bytes, and what its
backward runs again is priced as we price it. Beside each budget stands the fastest point of our
exact frontier (one device, recomputation) in as many bytes, and those of the inputs: a view of
an input counts as kept with us. Everything is predicted, nothing is run. Writes
benchmarks/results/partitioner.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomRuntimeEstimator
from torch._inductor.fx_utils import get_node_storage
from torch.fx import traceback as fx_traceback
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

import tensoropt_torch
from benchmarks.models.small import small_gpt, small_transformer
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.measure.kept.files import write_atomically
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.telling.details import details_of

RESULTS = Path(__file__).parent / "results" / "partitioner.json"
BUDGETS = tuple(i / 10 for i in range(1, 11))  # 0 keeps nothing, so all is in memory at once
OPERATOR = "tensoropt_operator"  # in the metadata of nodes: which of ours they are from

Example = tuple[nn.Module, tuple[torch.Tensor, ...]]
MODELS: dict[str, Callable[[], Example]] = {
    "gpt": small_gpt,
    "transformer": partial(small_transformer, 4, 16),
}


def forward_seconds(model: nn.Module, args: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """Of each node of the graph on one device: its price where there is no backward."""
    frozen = copy.deepcopy(model).requires_grad_(False)
    task = PlanningTask(capture(frozen, args), tensoropt_torch.load_cluster("cpu"))
    space = make_space(task.captured, task.settings(1))
    strategy = find_frontier(task, 1).fastest.plan.choices.strategy(space)
    rows = space.estimates(strategy)
    return {row.name.rpartition(".")[2]: row.time_s for row in rows}


class Labelled(fx.Interpreter):
    """Runs a graph; what is traced of it says which operator it is from."""

    def run_node(self, n: fx.Node) -> Any:
        n.meta["custom"] = {OPERATOR: n.name}
        with fx_traceback.set_current_meta(n):
            return super().run_node(n)


@dataclass(frozen=True)
class Split:
    """What one budget of the partitioner amounts to."""

    budget: float
    kept_bytes: float
    again_s: float


class Partitioner:
    """Splits the joint graph of a captured model at each budget, by our prices."""

    def __init__(self, captured: CapturedModel, seconds: Mapping[str, float]) -> None:
        self._captured = captured
        self._seconds = seconds

    def split(self, budget: float) -> Split:
        """Traces the model anew, since the partitioner changes the graph."""
        found: list[Split] = []

        def partition(
            joint: fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, **others: Any
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            prices = self._prices(joint)
            self._keep_the_loss(joint)
            estimate = _Estimate(prices)
            with functorch_config.patch(
                activation_memory_budget=budget,
                activation_memory_budget_runtime_estimator=estimate,
            ):
                forward, backward = min_cut_rematerialization_partition(
                    joint, inputs, num_fwd_outputs=num_fwd_outputs, **others
                )
            calls = [node for node in backward.graph.nodes if node.op == "call_function"]
            again = sum(prices.get(node.name, 0.0) for node in calls)
            found.append(Split(budget, _kept_bytes(forward, num_fwd_outputs), again))
            return forward, backward

        def nothing(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            return module.forward

        graph = self._captured.graph_module
        values = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
        compiled = aot_function(
            Labelled(graph).run, fw_compiler=nothing, bw_compiler=nothing, partition_fn=partition
        )
        with values[0].fake_mode, fx_traceback.preserve_node_meta():
            compiled(*values)
        return found[0]

    def _keep_the_loss(self, joint: fx.GraphModule) -> None:
        """What the operator at the end hands to its own backward is not made again."""
        (output,) = self._captured.graph_module.graph.find_nodes(op="output")
        last = {node.name for node in output.all_input_nodes}
        for node in joint.graph.nodes:
            if _operator_of(node) in last:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def _prices(self, joint: fx.GraphModule) -> dict[str, float]:
        """Seconds of each node of forward: views nothing, others of an operator by what they
        move, since a product is one node and the rest is bound by traffic."""
        parts: dict[str, list[fx.Node]] = defaultdict(list)
        for node in joint.graph.nodes:
            name = _operator_of(node)
            if name is not None and not _is_view(node):
                parts[name].append(node)
        prices = {}
        for name, nodes in parts.items():
            moved = {node.name: _moved_bytes(node) for node in nodes}
            share = self._seconds.get(name, 0.0) / sum(moved.values())
            prices |= {node: share * num_bytes for node, num_bytes in moved.items()}
        return prices


class _Estimate(CustomRuntimeEstimator):
    """Our prices as the partitioner asks for them."""

    def __init__(self, prices: Mapping[str, float]) -> None:
        self._prices = prices

    def __call__(self, node: fx.Node) -> float:
        return self._prices.get(node.name, 0.0)

    def uuid(self) -> None:
        """Nothing that is compiled with it is cached."""


def _operator_of(node: fx.Node) -> str | None:
    """Which of ours a call in forward is from."""
    if node.op != "call_function" or node.meta.get("partitioner_tag") == "is_backward":
        return None
    found: str | None = node.meta.get("custom", {}).get(OPERATOR)
    return found


def _is_view(node: fx.Node) -> bool:
    if node.target in (operator.getitem, torch.ops.aten._unsafe_view.default):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _num_bytes(tensor: torch.Tensor) -> float:
    return float(tensor.numel() * tensor.element_size())


def _moved_bytes(node: fx.Node) -> float:
    """Of operands and results."""
    values = [node.meta["val"], *(n.meta["val"] for n in node.all_input_nodes)]
    return sum(_num_bytes(tensor) for value in values for tensor in _tensors(value))


def _kept_bytes(forward: fx.GraphModule, num_outputs: int) -> float:
    """Of what forward hands to backward, but for what it was given: memory that several values
    lie in counts once."""
    (output,) = forward.graph.find_nodes(op="output")
    given = {get_node_storage(n) for n in forward.graph.find_nodes(op="placeholder")}
    found = {}
    for node in output.args[0][num_outputs:]:
        storage = get_node_storage(node)
        if storage is not None and storage not in given:
            (tensor,) = _tensors(node.meta["val"])
            found[storage] = tensor.untyped_storage().nbytes()
    return float(sum(found.values()))


# --- Ours ----------------------------------------------------------------------


def our_frontier(task: PlanningTask, given_bytes: float) -> list[tuple[float, float]]:
    """(bytes kept for backward, seconds that recomputation adds), the fewest bytes first."""
    rows = []
    for point in find_frontier(task, 1):
        details = details_of(point.plan)
        again = details.time.get("operators again in backward", 0.0)
        rows.append((details.memory["kept for backward"] - given_bytes, again))
    return rows


def compared(
    model: nn.Module, args: tuple[torch.Tensor, ...], budgets: Sequence[float] = BUDGETS
) -> dict[str, Any]:
    """One model: every budget beside the point of ours in its bytes."""
    captured = capture(model, args)
    cluster = tensoropt_torch.load_cluster("cpu")
    task = PlanningTask(captured, cluster, recompute=True, search=SearchSettings(epsilon=0.0))
    seconds = forward_seconds(model, args)
    partitioner = Partitioner(captured, seconds)
    inputs_bytes = sum(_num_bytes(tensor) for tensor in args)
    given = [s.placeholder.meta["val"] for s in captured.sources if s.kind != "parameter"]
    ours = our_frontier(task, sum(_num_bytes(tensor) for tensor in given))
    rows = []
    for budget in budgets:
        split = partitioner.split(budget)
        again = [again for kept, again in ours if kept <= split.kept_bytes + inputs_bytes]
        rows.append({**asdict(split), "our_again_s": min(again, default=None)})
    return {"forward_s": sum(seconds.values()), "ours": ours, "budgets": rows}


def format_row(row: dict[str, Any], forward_s: float) -> str:
    """What both run again, as shares of forward."""
    ours = row["our_again_s"]
    own = "nothing of ours keeps so little" if ours is None else f"ours {ours / forward_s:.2%}"
    return (
        f"budget {row['budget']}: {row['kept_bytes'] / 2**20:.1f} MiB kept, "
        f"{row['again_s'] / forward_s:.2%} of forward again, {own}"
    )


def main() -> None:
    """Compare, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = {}
    for name in options.models:
        found[name] = compared(*MODELS[name]())
        for row in found[name]["budgets"]:
            print(f"{name}, {format_row(row, found[name]['forward_s'])}", flush=True)
    record = {"torch": torch.__version__, "models": found}
    write_atomically(options.output, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
