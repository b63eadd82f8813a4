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
GATHER = _COLLECTIVES.all_gather_into_tensor.default
WAIT = _COLLECTIVES.wait_tensor.default
WRITE = OPS.write_into_.default
Function = Callable[..., Sequence[torch.Tensor]]


def summed(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = WAIT(SUM(x.contiguous(), "sum", "0"))
    return result


def gathered(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = WAIT(GATHER(x, 3, "0"))
    return result


def run(graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """With three ranks that all have the same."""
    for node in graph.graph.nodes:
        if node.target is SUM:
            node.target = lambda x, *_: x * 3
        elif node.target is GATHER:
            node.target = lambda x, *_: torch.cat([x] * 3)
        elif node.target is WAIT:
            node.target = torch.clone
    graph.recompile()
    torch.manual_seed(0)
    outputs: Sequence[torch.Tensor] = graph(*[x.clone() for x in inputs])  # which it may change
    return outputs


def bucketed(function: Function, inputs: Sequence[torch.Tensor]) -> Counter[Any]:
    """How often the graph calls what; it gives the same with buckets and without."""

    def traced() -> fx.GraphModule:
        return make_fx(function, tracing_mode="fake")(*inputs)

    graph = traced()
    in_buckets(graph.graph, Buckets(sums=2**30, shards=2**30))
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


def test_what_follows_with_zeros_waits_for_the_bucket() -> None:
    def function(x: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> list[torch.Tensor]:
        zeros = torch.zeros(6, 2)
        return [torch.ops.aten.index_put(zeros, [ids], summed(rows * 2), True), summed(x)]

    counts = bucketed(function, [normal(4), normal(3, 2), torch.tensor([5, 0, 5])])
    assert counts[SUM] == 1


@pytest.mark.parametrize("size", [1, 3, 400])
def test_ranks_with_uneven_parts_have_the_same_buckets(size: int) -> None:
    """What may be as large as an activation is not kept, whatever the size of a rank's part is;
    indices are."""

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        return [(summed(x * 2) * z).sum(), summed(y)]

    inputs = [normal(3), normal(4)]
    assert bucketed(function, [*inputs, normal(size, 3)])[SUM] == 2
    assert bucketed(function, [*inputs, torch.arange(3 * size).view(size, 3)])[SUM] == 1


Read = Callable[[torch.Tensor], torch.Tensor]
READS: dict[str, Read] = {
    "itself": lambda buffer: buffer,
    "a view": lambda buffer: buffer.view(2, 2)[1],
    "part of a split": lambda buffer: buffer.split(2)[0],
}


@pytest.mark.parametrize("writes_by_view", [False, True])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_follows_reads_a_buffer_before_it_is_written(read: Read, writes_by_view: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, buffer: torch.Tensor) -> list[torch.Tensor]:
        follows = summed(x)[:1] * read(buffer)
        other = summed(y)
        later = buffer + 1
        if writes_by_view:
            torch.ops.aten.copy_.default(buffer.view(-1), later)
        else:
            torch.ops.aten.copy_.default(buffer, later)
        return [follows, other]

    for dtype in (torch.float32, torch.int64):  # the latter else might wait
        bucketed(function, [normal(4), normal(4), torch.arange(4).to(dtype)])


def test_a_buffer_that_is_given_twice_is_one() -> None:
    """As a view that forward saved of an input is one of what backward is given."""
    buffer = torch.arange(4, dtype=torch.int32)

    def function(
        x: torch.Tensor, y: torch.Tensor, read: torch.Tensor, written: torch.Tensor
    ) -> Any:
        follows = summed(x) * read
        other = summed(y)
        torch.ops.aten.copy_.default(written, written + 1)
        return [follows, other]

    graph = make_fx(function, tracing_mode="fake")(normal(4), normal(4), buffer, buffer.clone())
    *_, read, written = graph.graph.find_nodes(op="placeholder")
    read.meta["val"] = written.meta["val"].view(4)
    in_buckets(graph.graph, Buckets(sums=2**30))
    assert len(graph.graph.find_nodes(op="call_function", target=SUM)) == 2


def test_what_is_summed_is_read_before_it_is_written() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        first = WAIT(SUM(x, "sum", "0"))
        torch.ops.aten.copy_.default(x, y * 2)
        return [first, summed(y), summed(y * 3)]

    counts = bucketed(function, [normal(4), normal(4)])
    assert counts[SUM] == 2  # the first one, and a bucket of the others


def test_what_follows_is_written_to_where_it_is() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, buffer: torch.Tensor) -> list[torch.Tensor]:
        made = summed(x).view(2, 2)
        torch.ops.aten.add_.Tensor(made, buffer.view(2, 2))
        torch.ops.aten.copy_.default(buffer, made.view(4))
        return [made, summed(y), buffer + 1]

    bucketed(function, [normal(4), normal(4), normal(4)])


def test_what_is_gathered_is_read_after_it_is_written() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        first, view = gathered(x), y.view(2, 2)
        torch.ops.aten.copy_.default(y, z * 2)
        return [first, gathered(view), gathered(z)]

    counts = bucketed(function, [normal(4), normal(4), normal(4)])
    assert counts[GATHER] == 2  # the written one, and a bucket of the others


@pytest.mark.parametrize("collective", [SUM, GATHER], ids=str)
def test_random_numbers_are_drawn_in_their_order(collective: Any) -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.aten.bernoulli.p(x, 0.5)
        return made

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        if collective is SUM:
            return [drawn(summed(x)), drawn(z), summed(y)]
        return [gathered(x), drawn(z), gathered(drawn(y))]

    counts = bucketed(function, [normal(64) for _ in range(3)])
    assert counts[collective] == 2


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
