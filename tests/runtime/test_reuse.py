"""Tensor reuse: saved tensors are replaced by (input, program) and come back."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensoropt_torch.runtime import ops, reuse
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.reuse import ReuseRegistry, keep_before
from tests.distributed.harness import run_ranks

HERE = "tests.runtime.test_reuse"
# A mask on its first rank is a copy: a local program, so no process group is
# needed, and gradients pass as they are.
COPY = [5, -1, -1, -1, 2, 0]
Tensor = torch.Tensor


def resharded(x: Tensor, keep: bool) -> Tensor:
    """A copy of x, made by the operator."""
    y = ops.reshard(x, COPY, [])
    if keep:
        keep_before(y, x, COPY, [])
    return y


def storage_of(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def example() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(8, 6, generator=generator, requires_grad=True),
        torch.randn(6, 5, generator=generator, requires_grad=True),
    )


def test_what_is_saved_is_freed_after_forward():
    for keep in (True, False):
        x, weight = example()
        with ReuseRegistry():
            y = resharded(x, keep)
            storage = storage_of(y)
            loss = (y @ weight).sum()
            assert not storage.expired()
            del y
            assert storage.expired() == keep
        assert storage.expired() == keep
        loss.backward()
        assert weight.grad is not None
        expected = x.detach().sum(0)[:, None].expand(6, 5)
        torch.testing.assert_close(weight.grad, expected)


def test_registering_does_not_extend_lifetimes():
    x, _ = example()
    x = x.detach().clone().requires_grad_()
    input_storage = storage_of(x)
    with ReuseRegistry() as registry:
        y = resharded(x, True)
        storage = storage_of(y)
        del y
        assert storage.expired()
        del x
        other = torch.ones(8, 6, requires_grad=True)
        resharded(other, True)  # registering drops what is not needed any more
        assert input_storage.expired()
        other_storage = storage_of(other)
        del other
    assert other_storage.expired()
    assert registry.counts.registered == 2
    assert registry.counts.saved == 0


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda y: y,
    "transposed": lambda y: y.t(),
    "part": lambda y: y[1:3, 2:],
    "column": lambda y: y[:, 3],
    "reshaped": lambda y: y.reshape(4, 12),
    "expanded": lambda y: y.unsqueeze(0).expand(3, 8, 6),
    "strided": lambda y: y.view(-1)[1::5],
}


@pytest.mark.parametrize("name", list(VIEWS))
def test_views_come_back_bit_by_bit(name: str):
    gradients = []
    for keep in (False, True):
        x, _ = example()
        with ReuseRegistry() as registry:
            y = resharded(x, keep)
            view = VIEWS[name](y)
            factor = torch.full(view.shape, 1.5, requires_grad=True)
            product = (factor * view).sin()  # saves the view, and the product
            storage = storage_of(y)
            del y, view
            assert storage.expired() == keep
        product.backward(torch.ones_like(product))
        gradients.append(factor.grad)
        assert registry.counts.replays == keep
    assert torch.equal(*gradients)


def test_one_replay_serves_all_that_save_it():
    x, weight = example()
    with ReuseRegistry() as registry:
        y = resharded(x, True)
        loss = (y @ weight).sum() + (y.t() @ y).sum() + y.pow(2).sum()
        del y
    assert registry.counts.saved >= 4
    loss.backward()
    assert registry.counts.replays == 1


def watch_replays(monkeypatch: pytest.MonkeyPatch) -> list[StorageWeakRef]:
    """The storages of all reshards from now on."""
    seen: list[StorageWeakRef] = []
    real = ops.reshard

    def watched(*args: Any, **keywords: Any) -> Tensor:
        result = real(*args, **keywords)
        seen.append(storage_of(result))
        return result

    monkeypatch.setattr(ops, "reshard", watched)
    return seen


def test_replays_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch):
    x, weight = example()
    with ReuseRegistry():
        y = resharded(x, True)
        loss = (y @ weight).sum() + (y @ weight).sum()
        del y
    replays = watch_replays(monkeypatch)
    loss.backward(retain_graph=True)
    assert len(replays) == 1
    assert replays[0].expired()


def test_replays_are_freed_with_those_that_wait_for_them(monkeypatch: pytest.MonkeyPatch):
    x, weight = example()
    with ReuseRegistry():
        y = resharded(x, True)
        first = (y @ weight).sum()
        second = (y @ weight).sum()
        del y
    replays = watch_replays(monkeypatch)
    torch.autograd.grad(first, weight)
    assert not replays[0].expired()
    del second
    assert replays[0].expired()


def test_replays_do_not_depend_on_what_lives():
    """Ranks would wait for each other for ever if one replayed and one did not."""
    x, weight = example()
    with ReuseRegistry() as registry:
        y = resharded(x, True)
        loss = (y @ weight).sum()
    loss.backward()
    assert registry.counts.replays == 1
    assert y is not None


def test_two_backward_passes_through_one_graph():
    x, weight = example()
    with ReuseRegistry() as registry:
        y = resharded(x, True)
        loss = (y @ weight).sum() + (y @ weight).sin().sum()
        del y
    loss.backward(retain_graph=True)
    first = weight.grad
    assert first is not None
    weight.grad = None
    loss.backward()
    assert weight.grad is not None
    assert torch.equal(first, weight.grad)
    assert registry.counts.replays == 3  # one for both, then one for each


def test_a_graph_dropped_without_backward_frees_everything():
    x, weight = example()
    x = x.detach().clone().requires_grad_()
    storage = storage_of(x)
    with ReuseRegistry():
        y = resharded(x, True)
        loss = (y @ weight).sum()
        del y, x
    assert not storage.expired()
    del loss
    assert storage.expired()


def test_the_input_is_freed_with_the_graph():
    x, weight = example()
    x = 2 * x  # not a leaf: only what is saved keeps it
    storage = storage_of(x)
    with ReuseRegistry():
        y = resharded(x, True)
        loss = (y @ weight).sum()
        del y, x
    loss.backward()
    assert storage.expired()


def test_views_of_another_dtype_are_saved_themselves():
    x, _ = example()
    with ReuseRegistry() as registry:
        bits = resharded(x.detach(), True).view(torch.int32)
        factor = torch.ones(8, 6, requires_grad=True)
        product = factor * bits
    assert registry.counts.saved == 0
    product.sum().backward()
    assert factor.grad is not None
    assert torch.equal(factor.grad, x.detach().view(torch.int32).float())


def test_other_storages_are_not_mistaken():
    """Addresses of freed tensors are used again; contents must not mix."""
    weight = torch.ones(6, 1, requires_grad=True)
    for _ in range(20):
        weight.grad = None
        with ReuseRegistry() as registry:
            total = torch.zeros(())
            expected = torch.zeros(6)
            for i in range(10):
                y = resharded(torch.full((8, 6), float(i), requires_grad=True), True)
                other = torch.full((4, 6), 100.0 + i)
                total = total + (y @ weight).sum() + (other @ weight).sum()
                expected += 8 * i + 4 * (100 + i)
                del y, other
        assert registry.counts.saved == 10
        total.backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad[:, 0], expected)


def test_an_input_changed_in_place_is_an_error():
    x, weight = example()
    with ReuseRegistry():
        y = resharded(x, True)
        loss = (y @ weight).sum()
        del y
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified in place after forward"):
        loss.backward()


def test_outside_a_registry_and_without_gradients_nothing_happens():
    x, weight = example()
    y = resharded(x, True)
    storage = storage_of(y)
    loss = (y @ weight).sum()
    del y
    assert not storage.expired()
    loss.backward()
    with ReuseRegistry() as registry, torch.no_grad():
        keep_before(ops.reshard(x, COPY, []), x, COPY, [])
    assert registry.counts.registered == 0


def test_hooks_end_with_the_context():
    x, weight = example()
    with ReuseRegistry() as outer:
        with ReuseRegistry() as inner:
            y = resharded(x, True)
        assert (y @ weight).requires_grad
        assert inner.counts.saved == 0
        z = resharded(x, True)
        assert (z @ weight).requires_grad
    assert (inner.counts.registered, outer.counts.registered) == (1, 1)
    assert outer.counts.saved == 1
    assert (y @ weight).requires_grad
    assert inner.counts.saved == 0


def test_hooks_end_after_an_error():
    x, weight = example()
    seen: list[torch.Size] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with pytest.raises(IndexError), ReuseRegistry():
            resharded(x, True)[:, 100]
        assert (x @ weight).requires_grad
    assert x.shape in seen


def test_saved_outputs_make_no_cycle():
    x, _ = example()
    gc.collect()
    gc.disable()
    try:
        with ReuseRegistry():
            resharded(x, True)
            a = torch.ones(3, requires_grad=True)
            b = a.exp()  # saves its own output
            storage = storage_of(b)
        del b
        assert storage.expired()
    finally:
        gc.enable()


def test_saved_leaves_get_gradients():
    x, weight = example()
    with ReuseRegistry():
        resharded(x, True)
        loss = (weight * weight).sum()
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), weight)
    assert torch.equal(gradient, 2 * weight)
    assert torch.equal(second, torch.full_like(weight, 2.0))


# --- with collectives --------------------------------------------------------


def expires(storage: StorageWeakRef) -> bool:
    """Whether it is freed soon: Gloo's threads hold tensors a moment longer."""
    end = time.monotonic() + 1
    while not storage.expired() and time.monotonic() < end:
        time.sleep(0.01)
    return storage.expired()


GATHER = [0, 0, -1, 0, 2]  # and the rank
SCATTER = [1, 0, -1, 0, 2]


def check_sharded_weight(keep: bool) -> tuple[int, int, bool]:
    """A linear layer whose weight is gathered when it is needed (FSDP)."""
    rank = torch.distributed.get_rank()
    groups = AxisGroups((2,))
    groups.create([1])
    names = [groups.name(1)]
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(4, 3, generator=generator)
    batch = torch.randn(2, 5, 3, generator=generator)
    weight = whole.chunk(2)[rank].clone().requires_grad_()
    x = batch[rank].clone().requires_grad_()
    ops.reset_collective_counts()
    with ReuseRegistry() as registry:
        gathered = ops.reshard(weight, [*GATHER, rank], names, [*SCATTER, rank], names)
        storage = storage_of(gathered)
        if keep:
            keep_before(gathered, weight, [*GATHER, rank], names)
        loss = torch.nn.functional.linear(x, gathered).pow(2).sum()
        del gathered
        freed = expires(storage)
    loss.backward()

    reference = whole.clone().requires_grad_()
    inputs = batch.clone().requires_grad_()
    torch.nn.functional.linear(inputs, reference).pow(2).sum().backward()
    assert reference.grad is not None
    assert inputs.grad is not None
    assert weight.grad is not None
    assert x.grad is not None
    torch.testing.assert_close(weight.grad, reference.grad.chunk(2)[rank])
    torch.testing.assert_close(x.grad, inputs.grad[rank])
    return registry.counts.replays, ops.collective_counts().all_gather, freed


def test_a_gathered_weight_is_gathered_again():
    assert run_ranks(2, f"{HERE}:check_sharded_weight", True) == [(1, 2, True)] * 2
    assert run_ranks(2, f"{HERE}:check_sharded_weight", False) == [(0, 1, False)] * 2


def left_without_backward(ahead: bool) -> bool:
    """Whether what a graph of buckets holds is freed with it, without the collector."""
    weight = torch.randn(3, 6).requires_grad_()
    x = torch.randn(5, 6, requires_grad=True)
    gc.disable()
    with ReuseRegistry(ahead):
        y = resharded(weight, False)
        keep_before(y, weight, COPY, [], bucket=0)
        program = weakref.ref(next(iter(_active().values())))
        loss = torch.nn.functional.linear(x, y).sum()
        del y
    assert program() is not None
    del loss
    freed = program() is None
    gc.enable()
    return freed


def _active() -> dict[int, Any]:
    registry = reuse._ACTIVE.get()
    assert registry is not None
    return registry._remade


@pytest.mark.parametrize("ahead", [False, True])
def test_a_graph_that_is_dropped_leaves_nothing_to_the_collector(ahead: bool):
    assert left_without_backward(ahead)


@pytest.mark.parametrize("saved", ["input", "result"])
def test_what_hooks_give_back_is_looked_at_as_pytorch_looks(saved: str):
    """Also what is not made again, as soon as there are hooks."""
    x, weight = example()
    z = torch.ones(3, requires_grad=True)
    names = {"input": z, "result": None}
    with ReuseRegistry(name_of=lambda tensor: f"parameter of {len(tensor)}"):
        y = resharded(x, True)
        result = z.exp() * z
        loss = (y @ weight).sum() + result.square().sum()
        del y
    with torch.no_grad():
        (result if names[saved] is None else z).add_(1)
    with pytest.raises(
        RuntimeError, match=r"has been modified in place.* parameter of 3, is at ver"
    ):
        loss.backward()
