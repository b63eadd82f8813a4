"""A graph that is run trains like the same model in plain PyTorch, in one process."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import tensoropt_torch.tf_style as to
from tensoropt_torch.tf_style.graph import current_graph
from tests.distributed.harness import run_ranks
from tests.tf_style.models import PAIRS, Pair, as_torch

HERE = "tests.tf_style.test_training"
STEPS = 4


def steps_of(pair: Pair) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(3)
    return [pair.draw() for _ in range(STEPS)]


def reference(
    pair: Pair, values: dict[str, torch.Tensor]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    module = pair.module()
    own = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            own[name.replace("/", ".")].copy_(as_torch(name, value))
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    losses = []
    for x, y in steps_of(pair):
        loss = module(pair.to_torch(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, own


def train(job: tuple[str, int]) -> tuple[list[str], float]:
    """Runs on every rank: what differs from one process, and the split memory."""
    name, point = job
    pair = PAIRS[name]
    to.init("gloo", seed=7)
    loss = pair.build()
    train_op = to.MomentumOptimizer(0.1, 0.9).minimize(loss)
    plan = to.find_frontier(cluster="cpu").thinned(3)[point].plan
    graph = to.build_execution_graph(engine="torch", plan=plan)
    names = [n.replace(".", "/") for n, _ in graph.module.named_parameters()]
    start = {n: graph.value(n) for n in names}
    expected, parameters = reference(pair, copy.deepcopy(start))
    wrong = []
    for step, (x, y) in enumerate(steps_of(pair)):
        value, nothing = graph.run([loss, train_op], feed_dict={"x": x, "y": y})
        assert nothing is None
        assert value is not None
        if not math.isclose(float(value), expected[step], rel_tol=1e-4):
            wrong.append(f"loss of step {step}: {float(value)} instead of {expected[step]}")
    for n in names:
        ours, theirs = as_torch(n, graph.value(n)), parameters[n.replace("/", ".")]
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5):
            wrong.append(f"'{n}' is off by {float((ours - theirs).abs().max())}")
    moved = max(float((graph.value(n) - start[n]).abs().max()) for n in names)
    assert moved > 1e-3
    local = sum(p.to_local().numel() for p in graph.module.parameters())  # type: ignore[operator]
    return wrong, local


@pytest.mark.parametrize("name", PAIRS)
def test_two_processes_equal_plain_training(name: str) -> None:
    numbers = []
    for point in range(3):
        for wrong, local in run_ranks(2, f"{HERE}:train", (name, point), 120):
            assert wrong == [], (name, point)
            numbers.append(local)
    assert min(numbers) < max(numbers), "some plan splits parameters"


def test_one_process_runs_without_torchrun() -> None:
    (result,) = run_ranks(1, f"{HERE}:train", ("mlp", 0), 60)
    assert result[0] == []


def seeds(_: None) -> list[bool]:
    """Whether initial values are equal: same seed, another seed, built in another order."""
    found = []
    for seed, first in ((1, "a"), (1, "a"), (2, "a"), (1, "b")):
        to.init("gloo", seed=seed)
        widths = {"a": [8, 16], "b": [16, 8]}
        for name in [first, *({"a", "b"} - {first})]:
            to.get_variable(name, widths[name])
        variables = current_graph().variables
        x = to.placeholder([4, 8], name="x")
        loss = to.reduce_mean(to.matmul(to.matmul(x, variables["a"]), variables["b"]))
        to.GradientDescentOptimizer(0.1).minimize(loss)
        graph = to.build_execution_graph(plan=to.find_strategy(cluster="cpu"))
        found.append(graph.value("a"))
    return [torch.equal(found[0], other) for other in found[1:]]


def test_initial_values_depend_on_seed_and_name_only() -> None:
    (result,) = run_ranks(1, f"{HERE}:seeds", None, 60)
    assert result == [True, False, True]
