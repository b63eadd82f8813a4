"""Products that free more than they make run as soon as they can, and compute what they did."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from tensoropt_torch.emit.early_products import mean_bytes, run_early

MM = torch.ops.aten.mm.default
Function = Callable[..., tuple[torch.Tensor, ...]]


def traced(function: Function, *inputs: torch.Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def products(module: fx.GraphModule) -> list[torch.Size]:
    """The shapes of what products make, in order."""
    nodes = module.graph.find_nodes(op="call_function", target=MM)
    return [node.meta["val"].shape for node in sorted(nodes)]


def backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a layer that takes more than it has weights."""
    gradient = dy.relu()
    below = torch.mm(gradient, weight).neg()
    return below, torch.mm(gradient.t(), x)


DY, X, WEIGHT = torch.randn(64, 4), torch.randn(64, 16), torch.randn(4, 16)
BELOW, OF_WEIGHT = (64, 16), (4, 16)


def test_what_frees_more_than_it_makes_goes_first() -> None:
    module = traced(backward, DY, X, WEIGHT)
    assert products(module) == [BELOW, OF_WEIGHT]
    expected = module(DY, X, WEIGHT)
    run_early(module.graph, [0, 1])
    module.recompile()
    assert products(module) == [OF_WEIGHT, BELOW]
    assert all(map(torch.equal, module(DY, X, WEIGHT), expected))


def test_what_is_somebody_elses_is_not_freed() -> None:
    module = traced(backward, DY, X, WEIGHT)
    run_early(module.graph, [])
    assert products(module) == [BELOW, OF_WEIGHT]


def test_what_is_used_later_is_not_freed() -> None:
    def used(
        dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        below, of_weight = backward(dy, x, weight)
        return below, of_weight, x.view(-1).sum()

    module = traced(used, DY, X, WEIGHT)
    run_early(module.graph, [0, 1])
    assert products(module) == [BELOW, OF_WEIGHT]


def test_what_makes_more_stays() -> None:
    module = traced(backward, torch.randn(4, 4), torch.randn(4, 16), WEIGHT)
    run_early(module.graph, [1])
    assert products(module)[0] == (4, 16)
    few = traced(backward, torch.randn(2, 8), torch.randn(2, 16), torch.randn(8, 16))
    run_early(few.graph, [1])
    assert products(few) == [(2, 16), (8, 16)]


def test_what_is_written_to_is_read_in_its_place() -> None:
    def written(
        dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = dy.relu()
        below = torch.mm(gradient, weight).neg()
        x.mul_(2)
        return below, torch.mm(gradient.t(), x)

    module = traced(written, DY, X.clone(), WEIGHT)
    run_early(module.graph, [0, 1])
    assert products(module) == [BELOW, OF_WEIGHT]


def test_random_graphs_compute_the_same() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    moved = 0
    for _ in range(40):
        steps = [(rng.random(), rng.randrange(64), rng.randrange(64)) for _ in range(14)]

        def function(
            *inputs: torch.Tensor, steps: list[tuple[float, int, int]] = steps
        ) -> tuple[torch.Tensor, ...]:
            values = [*inputs]
            for kind, first, second in steps:
                a, b = values[first % len(values)], values[second % len(values)]
                made = a.t().contiguous() if kind < 0.2 else a.t() if kind < 0.4 else a * 2
                if kind > 0.6 and a.shape[1] == b.shape[0]:
                    made = torch.mm(a, b)
                values.append(made)
            return tuple(values[-3:])

        shapes = [(8, 8), (8, 3), (3, 8), (8, 8)]
        inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        module = traced(function, *inputs)
        before = [node.name for node in module.graph.nodes]
        expected = module(*inputs)
        run_early(module.graph, rng.sample(range(4), rng.randint(0, 4)))
        module.recompile()
        moved += before != [node.name for node in module.graph.nodes]
        assert all(map(torch.equal, module(*inputs), expected))
    assert moved


def test_bytes_are_those_of_what_is_made() -> None:
    module = traced(lambda x: (x.t().relu(), (x * 2).view(-1)), torch.randn(4, 2))
    assert mean_bytes(module.graph) == 32
