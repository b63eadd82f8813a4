"""What ``run`` takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import tensoropt_torch.tf_style as to
from tensoropt_torch import Plan, TensorOptError
from tests.distributed.harness import run_ranks

HERE = "tests.tf_style.test_session"


def build() -> tuple[to.Placeholder, to.Placeholder, to.Tensor, to.Tensor, to.TrainOp]:
    to.init("gloo")
    x = to.placeholder([8, 6], name="x")
    y = to.placeholder([8], dtype=to.int64, name="y")
    to.placeholder([3], name="unused")
    w = to.get_variable("w", [6, 4], initializer=torch.linspace(-1, 1, 24).reshape(6, 4))
    frozen = to.get_variable("frozen", [4], trainable=False)
    logits = to.matmul(x, w) + frozen * to.constant([1.0, 2.0, 3.0, 4.0])
    loss = to.softmax_cross_entropy(y, logits)
    return x, y, logits, loss, to.GradientDescentOptimizer(0.5).minimize(loss)


def message_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except TensorOptError as error:
        return str(error)
    return ""


def feeds_and_fetches(_: None) -> dict[str, str]:
    """Runs on one rank: error messages; what is computed is asserted here."""
    x, y, logits, loss, train_op = build()
    other = to.relu(logits)
    plan = to.find_strategy(cluster="cpu", fetches=[logits])
    plan = Plan.from_json(plan.to_json())
    graph = to.build_execution_graph(engine="torch", plan=plan, fetches=[logits])
    torch.manual_seed(0)
    images, labels = torch.randn(8, 6), torch.randint(4, (8,))
    feeds = {x: images, y: labels}
    start, frozen = graph.value("w"), graph.value("frozen")
    expected = images @ start + frozen * torch.tensor([1.0, 2.0, 3.0, 4.0])

    # Tensors are those before the step; without a step nothing changes.
    first, nothing, scores = graph.run([loss, train_op, logits], feeds)
    assert nothing is None
    torch.testing.assert_close(scores, expected)
    torch.testing.assert_close(first, F.cross_entropy(expected, labels))
    after = graph.value("w")
    assert not torch.equal(after, start)
    torch.testing.assert_close(graph.value("frozen"), frozen)
    second = graph.run(loss, {"x": images.tolist(), "y": labels.int()})
    assert isinstance(second, torch.Tensor)
    assert second < first
    assert torch.equal(graph.value("w"), after)
    assert graph.run(train_op, feeds) is None

    run = graph.run
    messages = {
        "shape": message_of(lambda: run(loss, {x: images[:4], y: labels})),
        "missing": message_of(lambda: run(loss, {x: images})),
        "unknown name": message_of(lambda: run(loss, {x: images, y: labels, "z": 1})),
        "dtype": message_of(lambda: run(loss, {x: images, y: labels.float()})),
        "fetch": message_of(lambda: run(other, feeds)),
        "variable": message_of(lambda: graph.value("v")),
        "no fetches": message_of(lambda: to.build_execution_graph(plan=plan)),
    }
    foreign = build()[0]
    return messages | {"foreign": message_of(lambda: run(loss, {foreign: images, y: labels}))}


def test_feeds_and_fetches() -> None:
    (messages,) = run_ranks(1, f"{HERE}:feeds_and_fetches", None, 60)
    for what, words in {
        "shape": "'x' is fed with shape [4, 6], it has [8, 6]",
        "missing": "placeholder 'y' is not fed",
        "unknown name": "'z', which is no placeholder of the graph; these are x, y, unused",
        "dtype": "'y' of torch.int64 is fed with torch.float32",
        "fetch": "name it in fetches= of find_strategy",
        "variable": "no variable 'v' in the execution graph; it has w, frozen",
        "no fetches": "made for another model",
        "foreign": "'x', which is no placeholder of the graph",
    }.items():
        assert words in messages[what], (what, messages[what])


def sharded(_: None) -> tuple[float, str]:
    """Runs on two ranks: the loss of two shares, and the error for whole batches."""
    x, y, _, loss, _ = build()
    plan = to.find_strategy(inputs="sharded", measure=False)
    graph = to.build_execution_graph(plan=plan)
    torch.manual_seed(0)
    images, labels = torch.randn(8, 6), torch.randint(4, (8,))
    half = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    value = graph.run(loss, {x: images[half], y: labels[half]})
    scale = graph.value("frozen") * torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = F.cross_entropy(images @ graph.value("w") + scale, labels)
    torch.testing.assert_close(value, expected)
    return float(expected), message_of(lambda: graph.run(loss, {x: images, y: labels}))


def test_ranks_may_be_fed_with_their_shares() -> None:
    results = run_ranks(2, f"{HERE}:sharded", None, 60)
    assert results[0][0] == results[1][0]
    for _, message in results:
        assert "'x' is fed with shape [8, 6], it has [4, 6] on each rank" in message
