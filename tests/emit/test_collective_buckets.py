"""Collectives that go together in buckets give what each gives by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from tensoropt_torch.emit.collective_buckets import Buckets, in_buckets
from tensoropt_torch.operators import OPS

_COLLECTIVES = torch.ops._c10d_functional
SUM = _COLLECTIVES.all_reduce.default
WAIT = _COLLECTIVES.wait_tensor.default
WRITE = OPS.write_into_.default
Function = Callable[..., Sequence[torch.Tensor]]


def summed(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = WAIT(SUM(x.contiguous(), "sum", "0"))
    return result


def run(graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """With three ranks that all have the same."""
    for node in graph.graph.nodes:
        if node.target is SUM:
            node.target = lambda x, *_: x * 3
        elif node.target is WAIT:
            node.target = torch.clone
    graph.recompile()
    outputs: Sequence[torch.Tensor] = graph(*inputs)
    return outputs


def bucketed(function: Function, inputs: Sequence[torch.Tensor]) -> Counter[Any]:
    """How often the graph calls what; it gives the same with buckets and without."""

    def traced() -> fx.GraphModule:
        return make_fx(function, tracing_mode="fake")(*inputs)

    graph = traced()
    in_buckets(graph.graph, Buckets(sums=2**30))
    graph.recompile()
    counts = Counter(node.target for node in graph.graph.nodes)
    for own, expected in zip(run(graph, inputs), run(traced(), inputs), strict=True):
        assert torch.equal(own, expected)
        assert own.stride() == expected.stride()
    return counts


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def test_small_parts_are_written_by_one_call() -> None:
    def function(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [summed(x * 2) for x in xs]

    counts = bucketed(function, [normal(3, 2), normal(5), normal(2, 4).t(), normal(1)])
    assert counts[SUM] == counts[WRITE] == 1


def test_large_parts_are_written_as_soon_as_they_are_made() -> None:
    def function(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [summed(x * 2) for x in xs]

    large, small = (300, 300), (4,)
    counts = bucketed(function, [normal(*n) for n in (large, small, small, large, large, small)])
    assert counts[SUM] == 1
    assert counts[WRITE] == 4


def test_what_follows_with_small_operands_waits_for_the_bucket() -> None:
    def function(x: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> list[torch.Tensor]:
        made = torch.ops.aten.embedding_dense_backward(summed(rows * 2), ids, 6, -1, False)
        return [made, summed(x)]

    counts = bucketed(function, [normal(4), normal(3, 2), torch.tensor([5, 0, 5])])
    assert counts[SUM] == 1


@pytest.mark.parametrize("size", [3, 400])
def test_operands_that_are_larger_are_not_kept_for_it(size: int) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        other = z.exp()
        return [(summed(x * 2) * other).sum(), summed(y)]

    counts = bucketed(function, [normal(3), normal(4), normal(size // 3, 3)])
    assert counts[SUM] == (1 if size == 3 else 2)


def test_what_follows_from_two_sums_is_right() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        first = summed(x)
        second = summed(y * 2)
        return [first + second, first * second, summed(z)]

    bucketed(function, [normal(4), normal(4), normal(4)])


def test_what_is_sent_again_does_not_wait() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [summed(summed(x) * 2), summed(y)]

    counts = bucketed(function, [normal(4), normal(5)])
    assert counts[SUM] == 2  # the inner one, and a bucket of the others
