"""Leaves behind a gate: autograd finds them as if they were operands of the node that takes it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

from tensoropt_torch.operators import OPS


class _Sum(torch.autograd.Function):
    """The sum of all elements of leaves. Its backward sets ``.grad`` of those that are ``own``, and
    passes the gradients of others."""

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, leaves: Sequence[torch.Tensor], own: Sequence[int]
    ) -> torch.Tensor:
        ctx.gate, ctx.leaves, ctx.own = gate, leaves, own
        return torch.stack([leaf.detach().sum() for leaf in leaves]).sum()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> tuple[Any, ...]:
        passed: list[torch.Tensor | None] = []
        for number, leaf in enumerate(ctx.leaves):
            gradient = tangent.expand(leaf.shape).clone()
            if number in ctx.own:
                leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
            passed.append(None if number in ctx.own else gradient)
        if all(gradient is None for gradient in passed):
            return None, None, None
        OPS.pass_gate.default(ctx.gate, passed)
        return torch.zeros_like(ctx.gate), None, None


def sum_of(leaves: Sequence[torch.Tensor], own: Sequence[int]) -> torch.Tensor:
    total: torch.Tensor = _Sum.apply(OPS.leaf_gate.default(leaves), leaves, own)  # type: ignore[no-untyped-call]
    return total


def leaves_of(count: int = 3) -> list[torch.Tensor]:
    return [torch.randn(2, number + 1, requires_grad=True) for number in range(count)]


ALL = (0, 1, 2)


@pytest.mark.parametrize("own", [ALL, (0, 2), ()])
def test_every_leaf_has_its_gradient(own: Sequence[int]) -> None:
    leaves = leaves_of()
    torch.autograd.backward(sum_of(leaves, own) * 2)
    for leaf in leaves:
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, torch.full_like(leaf, 2))


@pytest.mark.parametrize("own", [ALL, (0, 2), ()])
def test_gradients_of_other_functions_arrive(own: Sequence[int]) -> None:
    """They wait for that of the gate, which has none."""
    leaves = leaves_of()
    penalty = torch.stack([leaf.sum() for leaf in leaves[:2]]).sum()
    torch.autograd.backward(sum_of(leaves, own) + 3 * penalty)
    for leaf, expected in zip(leaves, (4, 4, 1), strict=True):
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, torch.full_like(leaf, expected))


@pytest.mark.parametrize("own", [ALL, (1,), ()])
def test_two_gates_of_the_same_leaves(own: Sequence[int]) -> None:
    leaves = leaves_of()
    torch.autograd.backward(sum_of(leaves, own) + sum_of(leaves, ALL) * 2)
    for leaf in leaves:
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, torch.full_like(leaf, 3))


def test_tensors_that_follow_from_others() -> None:
    """What they follow from runs, also where it waits for several, one of which is behind the
    gate and gets nothing."""
    source = torch.randn(3, requires_grad=True)
    middle = source * 2
    total = sum_of([middle.detach().requires_grad_(), middle * 1], (0, 1))
    torch.autograd.backward(total + middle.sum())
    assert source.grad is not None
    assert torch.equal(source.grad, torch.full_like(source, 2))


def test_inputs_of_a_backward_are_found() -> None:
    leaves = leaves_of()
    (found,) = torch.autograd.grad(sum_of(leaves, ()), leaves[1:2])
    assert torch.equal(found, torch.ones_like(leaves[1]))
    torch.autograd.backward(sum_of(leaves, ()), inputs=leaves[2:])
    assert [leaf.grad is None for leaf in leaves] == [True, True, False]


def test_a_graph_that_is_kept_runs_again() -> None:
    leaves = leaves_of()
    total = sum_of(leaves, (0,))
    torch.autograd.backward(total, retain_graph=True)
    torch.autograd.backward(total)
    for leaf in leaves:
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, torch.full_like(leaf, 2))


def test_a_kept_graph_is_run_by_two_threads_at_once() -> None:
    """Each of which has passed its gradients before the gate runs for either."""
    leaf = torch.randn(3, requires_grad=True)
    gate = OPS.leaf_gate.default([leaf])
    both = threading.Barrier(2, timeout=60)
    between = torch.ones(1, requires_grad=True) * 1  # runs after the sum, and before the gate
    between.register_hook(lambda _: (both.wait(), None)[1])
    out: torch.Tensor = _Sum.apply(gate, [leaf], ())  # type: ignore[no-untyped-call]
    total = out + between.sum()
    found: dict[int, torch.Tensor] = {}

    def run(scale: int) -> None:
        tangent = torch.tensor(float(scale))
        # ``between`` as well, or autograd would not run its hook.
        gradients = torch.autograd.grad(total, [leaf, between], tangent, retain_graph=True)
        found[scale] = gradients[0]

    threads = [threading.Thread(target=run, args=(scale,)) for scale in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for scale in (1, 2):
        assert torch.equal(found[scale], torch.full_like(leaf, scale))


def test_gradients_of_a_backward_that_fails_end_with_it() -> None:
    leaf = torch.randn(3, requires_grad=True)
    gate = OPS.leaf_gate.default([leaf])
    own: list[int] = []
    fails = [True]
    passed: list[weakref.ref[torch.Tensor]] = []

    def fail(_: torch.Tensor) -> None:
        if fails[0]:
            raise KeyError("between")

    class Noted(_Sum):
        @staticmethod
        def backward(ctx: Any, tangent: torch.Tensor) -> tuple[Any, ...]:
            if ctx.own:
                return _Sum.backward(ctx, tangent)
            gradient = tangent.expand(leaf.shape).clone()
            passed.append(weakref.ref(gradient))
            OPS.pass_gate.default(ctx.gate, [gradient])
            return torch.zeros_like(ctx.gate), None, None

    between = torch.ones(1, requires_grad=True) * 1
    between.register_hook(fail)
    out: torch.Tensor = Noted.apply(gate, [leaf], own)  # type: ignore[no-untyped-call]
    total = out + between.sum()
    with pytest.raises(KeyError, match="between"):
        torch.autograd.backward(total, retain_graph=True)
    assert leaf.grad is None
    assert passed[0]() is None
    fails[0] = False
    own.append(0)  # so that nothing is passed, and the gate has nothing to return
    torch.autograd.backward(total)
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.ones_like(leaf))


def test_gradients_are_passed_within_a_backward() -> None:
    leaves = leaves_of()
    with pytest.raises(RuntimeError, match="during backward pass"):
        OPS.pass_gate.default(OPS.leaf_gate.default(leaves), leaves)


def test_hooks_run_as_for_operands() -> None:
    leaves, calls = leaves_of(), []
    accumulate = get_gradient_edge(leaves[0]).node
    accumulate.register_hook(lambda *_: calls.append("node"))
    leaves[1].register_hook(lambda gradient: gradient * 5)
    leaves[1].register_post_accumulate_grad_hook(lambda _: calls.append("post"))
    del accumulate  # whose hooks end with it unless it is in a graph
    accumulate = get_gradient_edge(leaves[0]).node
    accumulate.register_hook(lambda *_: calls.append("node"))
    torch.autograd.backward(sum_of(leaves, (0, 2)))
    assert sorted(calls) == ["node", "post"]
    assert leaves[1].grad is not None
    assert torch.equal(leaves[1].grad, torch.full_like(leaves[1], 5))


def test_hooks_of_leaves_that_only_the_gate_holds() -> None:
    leaves, calls = leaves_of(), []
    gate = OPS.leaf_gate.default(leaves)
    get_gradient_edge(leaves[0]).node.register_hook(lambda *_: calls.append("node"))
    total: torch.Tensor = _Sum.apply(gate, leaves, ALL)  # type: ignore[no-untyped-call]
    torch.autograd.backward(total)
    assert calls == ["node"]


def test_a_graph_ends_with_its_output() -> None:
    leaves = leaves_of()
    total = sum_of(leaves, ALL)
    ends = [weakref.ref(leaf) for leaf in leaves]
    torch.autograd.backward(total)
    del leaves, total
    gc.collect()
    assert [end() for end in ends] == [None] * 3


def test_second_derivatives_go_on() -> None:
    x = torch.tensor([3.0], requires_grad=True)
    tangent = torch.tensor(2.0, requires_grad=True)
    (first,) = torch.autograd.grad(sum_of([x], ()), [x], tangent, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), [tangent])
    assert torch.equal(second, torch.tensor(1.0))


def test_leaves_that_are_watched_or_written_to() -> None:
    leaves = [*leaves_of(), torch.randn(2, requires_grad=True) * 2]
    gate = OPS.leaf_gate.default(leaves)
    assert not OPS.watched_leaves.default(gate)
    assert OPS.written_leaves.default(gate) == []
    with torch.no_grad():
        leaves[2].mul_(2)
        leaves[3].mul_(2)  # autograd sees to that
    assert OPS.written_leaves.default(gate) == [2]
    assert OPS.written_leaves.default(OPS.leaf_gate.default(leaves)) == []
    leaves[1].register_hook(lambda gradient: gradient)
    assert OPS.watched_leaves.default(gate)
    gate = OPS.leaf_gate.default(leaves[:1])
    assert not OPS.watched_leaves.default(gate)
    leaves[0].register_post_accumulate_grad_hook(lambda _: None)
    assert OPS.watched_leaves.default(gate)


def test_first_gradients_are_given_all_at_once() -> None:
    leaves = leaves_of()
    gate = OPS.leaf_gate.default(leaves)
    given = [torch.ones_like(leaf) for leaf in leaves]
    assert OPS.give_leaves.default(gate, [given[0], None, given[2]])
    assert leaves[0].grad is given[0] and leaves[1].grad is None and leaves[2].grad is given[2]
    assert not OPS.give_leaves.default(gate, [None, given[1], given[2]])  # the third has one
    assert leaves[1].grad is None
    leaves[1].register_hook(lambda gradient: gradient * 2)
    assert not OPS.give_leaves.default(gate, [None, given[1], None])
    assert leaves[1].grad is None


def test_frozen_leaves_are_given_none() -> None:
    leaves = leaves_of()
    gate = OPS.leaf_gate.default(leaves)
    leaves[1].requires_grad_(False)
    assert not OPS.give_leaves.default(gate, [torch.ones_like(leaf) for leaf in leaves])
    assert [leaf.grad for leaf in leaves] == [None] * 3


def shared_gate(
    leaves: Sequence[torch.Tensor], owns: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A gate that several functions take, each of which sets ``.grad`` of those that are own."""
    gate = OPS.leaf_gate.default(leaves)
    return gate, [_Sum.apply(gate, leaves, own) for own in owns]  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("owns", [((), ()), (ALL, ()), ((0,), (1,)), (ALL, ALL)])
def test_two_functions_of_one_gate_in_one_backward(owns: Sequence[Sequence[int]]) -> None:
    """What each of them passes arrives."""
    leaves = leaves_of()
    _, (first, second) = shared_gate(leaves, owns)
    torch.autograd.backward(first + 2 * second)
    for leaf in leaves:
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, torch.full_like(leaf, 3))


def test_two_functions_of_one_gate_in_two_backwards() -> None:
    """The second finds that the leaves were left out, whose nodes are there still."""
    leaves = leaves_of()
    gate, totals = shared_gate(leaves, (ALL, ALL, ()))
    for total in totals[:2]:
        torch.autograd.backward(total)
        gc.collect()
    for leaf in leaves:
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, torch.full_like(leaf, 2))
        leaf.grad = None
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.backward(totals[2])
    with torch.no_grad():
        leaves[1].mul_(2)
    assert OPS.written_leaves.default(gate) == [1]
    assert OPS.give_leaves.default(gate, [torch.ones_like(leaf) for leaf in leaves])
    assert all(leaf.grad is not None for leaf in leaves)


def test_leaves_that_are_left_out_one_after_the_other() -> None:
    """Somebody holds the node of one until after the first backward."""
    leaves = leaves_of()
    held = get_gradient_edge(leaves[1]).node
    gate, (first, second) = shared_gate(leaves, (ALL, ALL))
    torch.autograd.backward(first)
    del held
    torch.autograd.backward(second)
    gc.collect()
    for leaf in leaves:
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, torch.full_like(leaf, 2))
        leaf.register_hook(lambda gradient: gradient)
    assert OPS.written_leaves.default(gate) == []
    with torch.no_grad():
        torch._foreach_mul_(leaves, 2.0)
    assert OPS.written_leaves.default(gate) == [0, 1, 2]


def test_refusals() -> None:
    leaves = leaves_of()
    gate = OPS.leaf_gate.default(leaves)
    for operator in (OPS.pass_gate.default, OPS.give_leaves.default):
        with pytest.raises(ValueError, match="2 gradients are for the 3 leaves of a gate"):
            operator(gate, [None, None])
        with pytest.raises(ValueError, match="is the gate of no leaves"):
            operator(leaves[0] * 2, [None])
    with pytest.raises(ValueError, match="for no leaves"):
        OPS.leaf_gate.default([])
