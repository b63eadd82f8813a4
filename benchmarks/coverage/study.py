"""What is found out about one model."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.coverage.bits import differing_bits
from benchmarks.coverage.ranks import Job
from benchmarks.coverage.zoo import make
from tensoropt_torch import _C
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.frontend.lowering import tensor_operands
from tensoropt_torch.frontend.passes import target_name
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.explanation import explain
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import PRELOADED, RankError, run_ranks

TIMEOUT_S = 400.0
NOTEWORTHY = 0.01
VIEWS = ("reshape", "transpose", "permute", "to", "t", "expand", "unsqueeze")

Record = dict[str, Any]


def study(name: str, strategies: int, processes: Sequence[int]) -> Record:
    """Capture, rules, searches and runs of one model, as plain data."""
    example = make(name)
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            captured = capture(example.model, example.args, **example.keywords)
    except Exception as error:
        return {"captures": False, "error": f"{type(error).__name__}: {error}"}
    record: Record = {
        "captures": True,
        "capture_s": time.perf_counter() - start,
        "operators": sum(_operators(captured).values()),
        "differing_bits": differing_bits(example, captured),
        "without_rule": without_rule(captured),
        "searches": {str(count): search(captured, count) for count in (2, 4, 8)},
    }
    record["runs"] = {str(count): run(name, strategies, count) for count in processes}
    return record


def search(captured: CapturedModel, num_devices: int) -> Record:
    """The size of the frontier and the time to find it."""
    start = time.perf_counter()
    frontier = find_frontier(PlanningTask(captured, load_cluster("cpu")), num_devices)
    return {"points": len(frontier), "search_s": time.perf_counter() - start}


def run(name: str, strategies: int, processes: int) -> Record:
    """Strategies on processes, compared with one process."""
    preloaded = (*PRELOADED, "benchmarks.coverage.ranks")
    function = "benchmarks.coverage.ranks:check"
    start = time.perf_counter()
    try:
        results = run_ranks(processes, function, Job(name, strategies), TIMEOUT_S, preloaded)
    except RankError as error:
        return {"strategies": 0, "wrong": [str(error)[-2000:]]}
    count, wrong = results[0]
    return {"strategies": count, "wrong": wrong, "seconds": time.perf_counter() - start}


def without_rule(captured: CapturedModel) -> Record:
    """Operators that run whole on every device, with their share of the work."""
    known = frozenset(_C.current_rules().targets())
    unknown = [name for name in _operators(captured) if name not in known]
    flops, of_parameters = _flops(captured.graph_module.graph), _parameter_bytes(captured)
    all_flops = max(1, sum(flops.values()))
    all_bytes = max(1, sum(_bytes(s.placeholder) for s in captured.parameters))
    return {
        name: {
            "count": _operators(captured)[name],
            "flops_share": flops[name] / all_flops,
            "parameter_share": of_parameters[name] / all_bytes,
        }
        for name in unknown
    }


def whole_operators(captured: CapturedModel, num_devices: int) -> list[str]:
    """Operators with more than 1 % of the FLOPs, or of the parameter bytes, that no config
    splits over all devices; of those with parameters also the ones that need all of them
    on every device."""
    task = PlanningTask(captured, load_cluster("cpu"))
    explanation = explain(task, num_devices)
    parts = {node.name: node.parts for node in explanation.operators}
    shares = {node.name: explanation.flops_share(node) for node in explanation.operators}
    read = _parameters_by_reader(captured)
    all_bytes = max(1, sum(_bytes(s.placeholder) for s in captured.parameters))
    space = make_space(captured, task.settings(num_devices))
    space_nodes = {row.graph_node: i for i, row in enumerate(space.nodes())}
    found = [n for n, share in shares.items() if share > NOTEWORTHY and parts[n] < num_devices]
    for node, ports in read.items():
        share = sum(_bytes(parameter) for parameter in ports.values()) / all_bytes
        configs = space.ports(space_nodes[captured.lowering.nodes[node]])
        splits = any("S" in config.inputs[port].value for config in configs for port in ports)
        if share > NOTEWORTHY and not splits:
            found.append(node.name)
    return [f"{name} ({shares.get(name, 0):.1%} of FLOPs)" for name in dict.fromkeys(found)]


def _parameters_by_reader(captured: CapturedModel) -> dict[fx.Node, dict[int, fx.Node]]:
    """By operator the operands that are parameters, views in between."""
    readers: dict[fx.Node, dict[int, fx.Node]] = {}
    for source in captured.parameters:
        for user, via in _uses(source.placeholder):
            port = tensor_operands(user).index(via)
            readers.setdefault(user, {})[port] = source.placeholder
    return readers


def _operators(captured: CapturedModel) -> Counter[str]:
    names = (target_name(node) for node in captured.graph_module.graph.nodes)
    return Counter(name for name in names if name)


def _flops(graph: fx.Graph) -> Counter[str]:
    """Those of matrix products, convolutions and attention, by operator."""
    found: Counter[str] = Counter()
    for node in graph.nodes:
        if isinstance(node.target, OpOverload):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda used: used.meta["val"])
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                node.target(*args, **kwargs)
            found[target_name(node)] += counter.get_total_flops()
    return found


def _parameter_bytes(captured: CapturedModel) -> Counter[str]:
    """Bytes of the parameters that operators read, views in between."""
    found: Counter[str] = Counter()
    for source in captured.parameters:
        for name in {target_name(user) for user, _ in _uses(source.placeholder)}:
            found[name] += _bytes(source.placeholder)
    return found


def _uses(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Operators that read it, views in between, and as which node."""
    for user in node.users:
        if target_name(user).split(".")[1:2] and target_name(user).split(".")[1] in VIEWS:
            yield from _uses(user)
        elif target_name(user):
            yield user, node


def _bytes(node: fx.Node) -> int:
    value: torch.Tensor = node.meta["val"]
    return value.numel() * value.element_size()
