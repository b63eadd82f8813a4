"""Calls that backward runs again: the same bits, and nothing kept."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from tensoropt_torch.runtime import recomputation
from tensoropt_torch.runtime.random import call_seeded
from tensoropt_torch.runtime.recomputation import recomputed, recomputed_draw
from tensoropt_torch.runtime.reuse import ReuseRegistry

Tensor = torch.Tensor
Run = Callable[..., Any]
aten = torch.ops.aten


def plain(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def plain_draw(*args: Any, **kwargs: Any) -> Any:
    return call_seeded(*args, **kwargs)


def storage_of(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The functions that ran again, in order."""
    names: list[str] = []
    run_again = recomputation._Call.run_again

    def counting(self: Any, made: Any) -> list[Tensor]:
        names.append(str(self._function))
        return run_again(self, made)

    monkeypatch.setattr(recomputation._Call, "run_again", counting)
    return names


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((8, 6), (5, 6), (6, 5))
    return tuple(  # type: ignore[return-value]
        torch.randn(size, generator=generator, requires_grad=True) for size in sizes
    )


def feed_forward(run: Run, draw: Run, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Nothing but x is kept where all of it runs again."""
    normed = run(aten.layer_norm.default, x, [6])
    wide = run(aten.linear.default, normed, up)
    active = run(aten.gelu.default, wide)
    dropped = draw(aten.dropout.default, 7, (0, 1), active, 0.5, True)
    return aten.linear.default(dropped, down)


def several_outputs(run: Run, draw: Run, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    left, right = run(aten.split.Tensor, run(aten.mul.Tensor, x, x), 3, 1)
    both = run(aten.cat.default, [right, run(aten.sigmoid.default, left)], 1)
    return aten.linear.default(run(aten.relu.default, aten.linear.default(both, up)), down)


def views(run: Run, draw: Run, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    wide = run(aten.linear.default, x, up)
    turned = run(aten.transpose.int, wide, 0, 1)
    part = run(aten.slice.Tensor, turned, 1, 2, 7)
    flat = run(aten.reshape.default, part, [5, 5])
    return run(aten.softmax.int, flat, -1) @ down.t()[:, :5] * flat


def joined(run: Run, draw: Run, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """What one call makes, others that run again and some that do not need."""
    wide = run(aten.linear.default, x, up)
    gate = run(aten.silu.default, wide)
    return (gate * wide) @ down.t() + run(aten.tanh.default, wide).exp() @ down.t()


def untouched(run: Run, draw: Run, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Calls that give back what they got, and calls without gradients."""
    same = run(aten.dropout.default, x, 0.0, True)
    mask = run(aten.gt.Scalar, same, 0)
    chosen = run(aten.where.self, mask, run(aten.contiguous.default, same), same * 2)
    return aten.linear.default(aten.linear.default(chosen, up), down).exp()


MODELS = [feed_forward, several_outputs, views, joined, untouched]


def gradients(model: Run, run: Run, draw: Run) -> list[Tensor]:
    leaves = inputs()
    with ReuseRegistry():
        output = model(run, draw, *leaves)
    output.backward(torch.linspace(-1, 1, output.numel()).reshape(output.shape))
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("model", MODELS)
def test_bits_are_those_without(model: Run, runs: list[str]) -> None:
    expected = gradients(model, plain, plain_draw)
    assert not runs
    found = gradients(model, recomputed, recomputed_draw)
    assert runs
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("model", MODELS)
def test_a_call_runs_again_once_at_most(model: Run, runs: list[str]) -> None:
    calls: list[str] = []

    def counting(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        calls.append(str(function))
        return recomputed(function, *args, **kwargs)

    gradients(model, counting, recomputed_draw)
    for name in set(calls):
        assert runs.count(name) <= calls.count(name)


def test_nothing_of_it_is_kept(runs: list[str]) -> None:
    made: list[StorageWeakRef] = []

    def watched(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = recomputed(function, *args, **kwargs)
        made.append(storage_of(result))
        return result

    def watched_draw(*args: Any, **kwargs: Any) -> Any:
        result = recomputed_draw(*args, **kwargs)
        made.append(storage_of(result))
        return result

    leaves = inputs()
    with ReuseRegistry():
        output = feed_forward(watched, watched_draw, *leaves)
    assert all(storage.expired() for storage in made)
    assert not runs
    output.sum().backward()
    # The last product is not among them; all before it are, each once.
    assert len(runs) == len(made) == 4


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_what_was_made_again_is_freed_when_it_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of backward nothing is left, without the garbage collector."""
    leaves = inputs()
    with ReuseRegistry():
        output = feed_forward(recomputed, recomputed_draw, *leaves)
    storages: list[StorageWeakRef] = []
    share = recomputation._Made.share

    def watching(self: Any, made: Tensor) -> None:
        storages.append(storage_of(made))
        share(self, made)

    monkeypatch.setattr(recomputation._Made, "share", watching)
    output.sum().backward()
    kept = {storage_of(leaf).cdata for leaf in leaves}
    assert storages
    assert all(s.expired() or s.cdata in kept for s in storages)


def test_backward_may_run_twice() -> None:
    leaves = inputs()
    with ReuseRegistry():
        output = feed_forward(recomputed, recomputed_draw, *leaves)
    first = torch.autograd.grad(output.sum(), leaves, retain_graph=True)
    second = torch.autograd.grad(output.sum(), leaves)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def deep(run: Run, x: Tensor, depth: int) -> Tensor:
    """Each call needs the one before, twice."""
    for _ in range(depth):
        x = run(aten.add.Tensor, run(aten.tanh.default, x), x)
    return x


def test_chains_may_be_as_long_as_a_model_is_deep(runs: list[str]) -> None:
    depth = 2 * sys.getrecursionlimit()
    x, y = (inputs()[0].detach().mul(0.01).requires_grad_() for _ in range(2))
    with ReuseRegistry():
        output = deep(recomputed, x, depth)
    output.sum().backward()
    deep(plain, y, depth).sum().backward()
    assert x.grad is not None and y.grad is not None
    assert torch.equal(x.grad, y.grad)
    assert len(runs) <= 2 * depth


def test_a_second_backward_makes_each_call_once_for_a_saved_tensor(runs: list[str]) -> None:
    depth = 20
    (x, _, _) = inputs()
    with ReuseRegistry():
        output = deep(recomputed, x, depth)
    (first,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
    runs.clear()
    (second,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(first, second)
    assert len(runs) <= depth * 2 * depth


def test_a_part_of_backward_makes_what_it_needs(runs: list[str]) -> None:
    x, up, down = inputs()
    with ReuseRegistry():
        output = feed_forward(recomputed, recomputed_draw, x, up, down)
    (gradient,) = torch.autograd.grad(output.sum(), down, retain_graph=True)
    expected = gradients(feed_forward, plain, plain_draw)
    assert gradient.shape == down.shape
    output.backward(torch.linspace(-1, 1, output.numel()).reshape(output.shape))
    assert x.grad is not None
    assert torch.equal(x.grad, expected[1])


@pytest.mark.usefixtures("without_collector")
def test_a_graph_that_is_dropped_runs_nothing(runs: list[str]) -> None:
    leaves = inputs()
    with ReuseRegistry():
        output = feed_forward(recomputed, recomputed_draw, *leaves)
    del output
    del leaves
    assert not [o for o in gc.get_objects() if type(o) is recomputation._Call]
    assert not runs


def test_without_gradients_it_is_the_call(runs: list[str]) -> None:
    leaves = inputs()
    with torch.no_grad(), ReuseRegistry() as registry:
        feed_forward(recomputed, recomputed_draw, *leaves)
    assert registry.counts.registered == 0
    feed_forward(recomputed, recomputed_draw, *leaves).sum().backward()  # no registry
    assert not runs


def test_an_operand_that_changed_is_an_error() -> None:
    x, up, down = inputs()
    with ReuseRegistry():
        output = feed_forward(recomputed, recomputed_draw, x, up, down)
    with torch.no_grad():
        up.add_(1)
    with pytest.raises(RuntimeError, match="modified in place after forward"):
        output.sum().backward()


def test_autocast_around_backward_does_not_reach_forward() -> None:
    """PyTorch's own backward computes in bfloat16 then, what runs again does not."""
    results = []
    for run, draw in ((plain, plain_draw), (recomputed, recomputed_draw)):
        leaves = inputs()
        with ReuseRegistry():
            output = feed_forward(run, draw, *leaves)
        with torch.autocast("cpu", torch.bfloat16):
            output.sum().backward()
        results.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


def test_draws_leave_the_generators_alone() -> None:
    leaves = inputs()
    with ReuseRegistry():
        output = feed_forward(recomputed, recomputed_draw, *leaves)
    state = torch.random.get_rng_state()
    output.sum().backward()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_attention_and_its_statistics_are_not_kept() -> None:
    """What an operator saves beside operands and results is made again as well."""

    def model(run: Run, draw: Run, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        q = run(aten.reshape.default, x, [1, 2, 4, 6])
        attended = run(aten.scaled_dot_product_attention.default, q, q.sin(), q, None, 0.0, True)
        return attended * attended

    expected = gradients(model, plain, plain_draw)
    found = gradients(model, recomputed, recomputed_draw)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_random_graphs_keep_their_bits() -> None:
    """Random expressions, each call run again or not at random."""
    unary = [aten.sin.default, aten.tanh.default, aten.relu.default, aten.t.default]
    binary = [aten.mul.Tensor, aten.add.Tensor, aten.mm.default]
    for seed in range(40):
        results = []
        for again in (False, True):
            generator = torch.Generator().manual_seed(seed)

            def choose(count: int, generator: torch.Generator = generator) -> int:
                return int(torch.randint(count, (), generator=generator))

            leaf = nn.Parameter(torch.randn(5, 5, generator=generator))
            values: list[Tensor] = [leaf]
            with ReuseRegistry():
                for _ in range(14):
                    run = recomputed if choose(3) and again else plain
                    operands = [values[choose(len(values))] for _ in range(2)]
                    if choose(2):
                        values.append(run(unary[choose(len(unary))], operands[0]))
                    else:
                        values.append(run(binary[choose(len(binary))], *operands))
                loss = torch.stack([F.softsign(v).sum() for v in values[-3:]]).sum()
                values.clear()
            loss.backward()
            results.append((loss.detach(), leaf.grad))
        (loss_a, grad_a), (loss_b, grad_b) = results
        assert torch.equal(loss_a, loss_b), f"seed {seed}"
        assert grad_a is not None
        assert grad_b is not None
        assert torch.equal(grad_a, grad_b), f"seed {seed}"


def test_what_moves_without_a_version_is_found_as_forward_had_it(runs: list[str]) -> None:
    """Values of forward; what autograd saves is the memory, as without running again."""

    def step(run: Run) -> list[Tensor]:
        x, up, _ = inputs()
        mean, var = torch.zeros(5), torch.ones(5)
        with ReuseRegistry():
            h = torch.nn.functional.linear(x, up)
            y = run(h, None, None, mean, var, False, 0.1, 1e-5, False)
            loss = y.sigmoid().square().sum()
        F.batch_norm(h.detach() * 3 + 1, mean, var, training=True)
        loss.backward()
        assert x.grad is not None and up.grad is not None
        return [x.grad, up.grad]

    def beside(*args: Any) -> Tensor:
        result: Tensor = recomputation.recomputed_beside(args[3:5], aten.batch_norm.default, *args)
        return result

    expected, got = step(aten.batch_norm.default), step(beside)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert runs == ["aten.batch_norm.default"]
