"""Reshards of parameters that overlap with computing, against those that wait at once,
with everything that autograd can do."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.testing import assert_close

from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.parameter_queue import (
    begin_gathers,
    begin_value,
    parameter_queue,
    take_value,
)
from tensoropt_torch.step_code import StepKind, steps_of
from tests.distributed.harness import run_ranks
from tests.distributed.layouts import gradient_layouts, local_part
from tests.distributed.runtime.test_reshard import Reshards
from tests.operators import await_gradients, reshard_gradients, reshard_parameter

HERE = "tests.distributed.runtime.test_overlap"
SIZES = (2, 2)
SHAPE = (8, 12)
BUCKETS = (0, 1000, 2**20)  # bytes
VALUES = ("R,R", "S0,R", "R,S1", "S0,S1", "S0,S0", "S1,S0")


class Nothing(torch.autograd.Function):
    """The identity, which gives no gradient."""

    @staticmethod
    def forward(_: object, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: object, gradient: torch.Tensor) -> None:
        return None


class Parameter:
    """A leaf in a storage layout, used in another one; its gradient in a third."""

    def __init__(self, reshards: Reshards, seed: int) -> None:
        self.seed = seed
        choose = random.Random(seed).choice
        self.stored = choose(VALUES)
        used = self.stored if choose(range(3)) == 0 else choose(VALUES)
        gradient = choose(gradient_layouts(used))
        self.programs = (
            *reshards.encode(self.stored, used),
            *reshards.encode(gradient, self.stored),
        )
        self.name = f"{self.stored} used as {used}, gradient {gradient}"
        whole = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).double()
        self.leaf = local_part(whole, self.stored, SIZES, reshards.rank).clone().requires_grad_()
        generator = torch.Generator().manual_seed(1000 * reshards.rank + seed)
        shape = local_part(whole, used, SIZES, reshards.rank).shape
        self.factor = torch.randn(shape, generator=generator).double()
        self.has_gradient = True

    @property
    def is_unchanged(self) -> bool:
        """Whether ``reshard_gradients`` is for it; of those that could have it, one half."""
        return not self.programs[0] and self.seed % 2 == 0

    def gathers(self, groups: list[str]) -> bool:
        """Whether its value takes one all-gather over these ranks."""
        forward, own = self.programs[:2]
        kinds = [step.kind for step in steps_of(forward, own)]
        return kinds == [StepKind.ALL_GATHER] and own == groups

    def term(self, value: torch.Tensor) -> torch.Tensor:
        """What it adds to a loss; the gradient differs with the rank."""
        if not self.has_gradient:
            value = Nothing.apply(value)
        return (value * self.factor).sin().sum()


def terms_awaited(parameters: list[Parameter], most: int = 2) -> list[torch.Tensor]:
    """Values are begun two ahead; those of every fourth parameter are not. Those that come next
    and take one all-gather as well, over the same ranks, begin with them. Some are used as they
    are, those of the same backward program by one call. Gradients are summed by themselves, a few
    at once, or all at once."""
    bucket_bytes = BUCKETS[parameters[0].seed // 100 % len(BUCKETS)]
    queue = parameter_queue(bucket_bytes, bucket_bytes // 2, most)
    leaves = await_gradients([p.leaf for p in parameters], queue, range(len(parameters)))
    values = unchanged_values(parameters, leaves, queue)
    terms = []
    begun = set(values)
    for slot, (p, leaf) in enumerate(zip(parameters, leaves, strict=True)):
        ahead = slot + 2
        if ahead < len(parameters) and ahead % 4 and ahead not in begun:
            begun |= begin_with_alike(parameters, leaves, queue, ahead)
        if slot in values:
            terms.append(p.term(values[slot]))
        else:
            terms.append(p.term(reshard_parameter(leaf, *p.programs, queue, slot)))
    return terms


def unchanged_values(
    parameters: list[Parameter], leaves: list[torch.Tensor], queue: int
) -> dict[int, torch.Tensor]:
    """By slot, all of them before any is used."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for slot, p in enumerate(parameters):
        if p.is_unchanged:
            _, _, steps, groups = p.programs
            alike.setdefault((*steps, *groups), []).append(slot)
    values: dict[int, torch.Tensor] = {}
    for slots in alike.values():
        program = parameters[slots[0]].programs[2:]
        results = reshard_gradients([leaves[slot] for slot in slots], *program, queue, slots)
        values |= zip(slots, results, strict=True)
    return values


def begin_with_alike(
    parameters: list[Parameter], leaves: list[torch.Tensor], queue: int, slot: int
) -> set[int]:
    """The slots that have begun."""
    programs, groups = parameters[slot].programs[:2]
    alike = [slot, *(i for i in range(slot + 1, len(parameters)) if parameters[i].gathers(groups))]
    if not parameters[slot].gathers(groups) or len(alike) == 1:
        begin_value(leaves[slot], programs, groups, queue, slot)
        return {slot}
    dims = [parameters[i].programs[0][1] for i in alike]
    begin_gathers([leaves[i] for i in alike], dims, groups[0], queue, alike)
    return set(alike)


def terms_at_once(parameters: list[Parameter]) -> list[torch.Tensor]:
    return [p.term(ops.reshard(p.leaf, *p.programs)) for p in parameters]


def terms_of(parameters: list[Parameter], awaited: bool) -> list[torch.Tensor]:
    return terms_awaited(parameters) if awaited else terms_at_once(parameters)


def loss_of(parameters: list[Parameter], awaited: bool) -> torch.Tensor:
    return sum(terms_of(parameters, awaited), torch.zeros(()))


def gradients(parameters: list[Parameter]) -> list[torch.Tensor | None]:
    taken = [p.leaf.grad for p in parameters]
    for p in parameters:
        p.leaf.grad = None
    return taken


def check(seeds: range, backward: Callable[[list[Parameter], bool], object]) -> None:
    """``backward(parameters, awaited)`` leaves the same gradients either way."""
    reshards = Reshards(SIZES, SHAPE)
    for seed in seeds:
        parameters = [Parameter(reshards, 100 * seed + i) for i in range(7)]
        backward(parameters, False)
        expected = gradients(parameters)
        backward(parameters, True)
        for p, a, b in zip(parameters, gradients(parameters), expected, strict=True):
            assert (a is None) == (b is None), f"seed {seed}: {p.name}"
            assert_close(a, b, rtol=1e-12, atol=1e-12, msg=f"seed {seed}: {p.name}")


def once(parameters: list[Parameter], awaited: bool) -> None:
    loss_of(parameters, awaited).backward()


def accumulated(parameters: list[Parameter], awaited: bool) -> None:
    for _ in range(2):
        loss_of(parameters, awaited).backward()


def twice_through_one_graph(parameters: list[Parameter], awaited: bool) -> None:
    loss = loss_of(parameters, awaited)
    loss.backward(retain_graph=True)
    loss.backward()


def in_two_parts(parameters: list[Parameter], awaited: bool) -> None:
    """Each pass reaches some of the parameters."""
    terms = terms_of(parameters, awaited)
    sum(terms[1:4], torch.zeros(())).backward(retain_graph=True)
    sum(terms[3:6], torch.zeros(())).backward()


def frozen(parameters: list[Parameter], awaited: bool) -> None:
    for p in parameters[::2]:
        p.leaf.requires_grad_(False)
    loss_of(parameters, awaited).backward()
    for p in parameters[::2]:
        p.leaf.requires_grad_(True)


def asked_for(parameters: list[Parameter], awaited: bool) -> None:
    """``torch.autograd.grad`` of one of them."""
    leaf = parameters[2].leaf
    (leaf.grad,) = torch.autograd.grad(loss_of(parameters, awaited), [leaf])


def seen_by_hooks(parameters: list[Parameter], awaited: bool) -> None:
    """Hooks get what is ready."""
    handles = [p.leaf.register_hook(lambda gradient: 2 * gradient) for p in parameters]
    loss_of(parameters, awaited).backward()
    for handle in handles:
        handle.remove()


def after_a_failure(parameters: list[Parameter], awaited: bool) -> None:
    """A pass that failed halfway leaves nothing behind in its graph."""

    def fail(gradient: torch.Tensor) -> None:
        raise RuntimeError("halfway")

    if not awaited:
        sum(terms_at_once(parameters[:3])).backward()
        return
    terms = terms_awaited(parameters)
    middle = terms[3] * 1.0
    handle = middle.register_hook(fail)
    with pytest.raises(RuntimeError, match="halfway"):
        (sum(terms[:3]) + middle + sum(terms[4:])).backward(retain_graph=True)
    handle.remove()
    dist.barrier()
    sum(terms[:3]).backward()


def inside_another(parameters: list[Parameter], awaited: bool) -> None:
    """A hook asks for a gradient through the graph that backward is in. Each gradient is summed
    by itself: sums of several are not the same to the last bit."""
    for parameter in parameters:
        parameter.seed = 0
    terms = terms_of(parameters, awaited)
    middle = terms[3] * 1.0
    loss = sum(terms[:3]) + middle + sum(terms[4:])
    asked: list[torch.Tensor] = []

    def ask(gradient: torch.Tensor) -> None:
        if not asked:
            asked.append(gradient)
            asked.extend(torch.autograd.grad(loss, [parameters[5].leaf], retain_graph=True))

    middle.register_hook(ask)
    loss.backward(retain_graph=True)
    assert torch.equal(asked[1], parameters[5].leaf.grad)


def unreached(parameters: list[Parameter], awaited: bool) -> None:
    """Hooks of parameters that a pass does not reach are not called."""
    handles = [p.leaf.register_hook(lambda gradient: 2 * gradient) for p in parameters]
    terms = terms_of(parameters, awaited)
    sum(terms[2:5]).backward()
    for handle in handles:
        handle.remove()


def without_gradient(parameters: list[Parameter], awaited: bool) -> None:
    """A pass that reaches a value but has no gradient for it sends none."""
    for p in parameters[::2]:
        p.has_gradient = False
    loss = loss_of(parameters, awaited)
    for p in parameters[::2]:
        p.has_gradient = True
    ops.reset_collective_counts()
    loss.backward()
    sent = sum(bool(p.programs[2]) for p in parameters[1::2])
    assert ops.collective_counts().programs == sent
    assert all(p.leaf.grad is None for p in parameters[::2])


WAYS = (
    once,
    accumulated,
    twice_through_one_graph,
    in_two_parts,
    frozen,
    asked_for,
    seen_by_hooks,
    after_a_failure,
    inside_another,
    unreached,
    without_gradient,
)


def run_way(payload: tuple[str, int]) -> None:
    name, start = payload
    check(range(start, start + 12), next(way for way in WAYS if way.__name__ == name))


@pytest.mark.parametrize("way", [way.__name__ for way in WAYS])
def test_gradients_are_those_of_reshards_that_wait(way: str) -> None:
    start = random.randrange(1000)
    print(f"first seed {start}")
    run_ranks(4, f"{HERE}:run_way", (way, start))


def run_order(unchanged: bool) -> tuple[list[int], list[int]]:
    """Programs begun so far, whenever a parameter's part of backward begins, and whenever
    a gradient is ready."""
    reshards = Reshards(SIZES, SHAPE)
    parameters = [Parameter(reshards, seed) for seed in range(50)]
    communicate = [p for p in parameters if p.programs[3]]
    collective = [p for p in communicate if p.is_unchanged == unchanged][:6]
    at_terms: list[int] = []
    at_gradients: list[int] = []
    terms = terms_awaited(collective)
    for term, p in zip(terms, collective, strict=True):
        term.register_hook(lambda _: at_terms.append(ops.collective_counts().programs))
        p.leaf.register_hook(lambda _: at_gradients.append(ops.collective_counts().programs))
    ops.reset_collective_counts()
    sum(terms).backward()
    return at_terms, at_gradients


@pytest.mark.parametrize("unchanged", [False, True])
def test_programs_begin_during_backward_and_are_awaited_at_its_end(unchanged: bool) -> None:
    for at_terms, at_gradients in run_ranks(4, f"{HERE}:run_order", unchanged):
        count = len(at_terms)
        assert count >= 3
        assert at_terms == list(range(count))
        assert at_gradients == [count] * count


def run_without_gradients(_: None) -> None:
    reshards = Reshards(SIZES, SHAPE)
    parameters = [Parameter(reshards, seed) for seed in range(6)]
    with torch.no_grad():
        assert not loss_of(parameters, True).requires_grad
        assert_close(loss_of(parameters, True), loss_of(parameters, False))


def test_without_gradients() -> None:
    run_ranks(4, f"{HERE}:run_without_gradients")


def run_misuse(_: None) -> None:
    reshards = Reshards(SIZES, SHAPE)
    queue, (group,) = parameter_queue(), reshards.encode("S0,R", "R,R")[1]
    x, y = torch.ones(2, 3), torch.ones(4)
    for parts, dims, message in (
        ([], [], "nothing is gathered"),
        ([x, y], [0], "2 tensors are gathered along 1 dims"),
        ([x, y], [0, 1], "gathers dim 1 of a tensor with 1 dims"),
        ([x, y.double()], [0, 0], "tensors of Float and Double"),
        ([x, y[:0]], [0, 0], "no elements, or complex"),
        ([x + 1j, y + 1j], [0, 0], "no elements, or complex"),
    ):
        with pytest.raises(ValueError, match=message):
            begin_gathers(parts, dims, group, queue, range(len(parts)))
    with pytest.raises(ValueError, match="no value was begun in slot 0"):
        take_value(x, queue, 0)
    with pytest.raises(ValueError, match="2 gradients are resharded in 1 slots"):
        reshard_gradients([x, y], *reshards.encode("P,R", "R,R"), queue, [0])


def test_what_cannot_be_gathered_together_is_refused() -> None:
    run_ranks(4, f"{HERE}:run_misuse")


def run_values(first_seed: int) -> int:
    """Values that are gathered together are those of programs by themselves, bit for bit, in
    memory of their own; how many were."""
    reshards = Reshards(SIZES, SHAPE)
    together = 0
    for seed in range(first_seed, first_seed + 20):
        parameters = [Parameter(reshards, 100 * seed + i) for i in range(12)]
        queue = parameter_queue()
        begun: set[int] = set()
        for slot in range(len(parameters)):
            if slot not in begun:
                found = begin_with_alike(parameters, [p.leaf for p in parameters], queue, slot)
                together += len(found) if len(found) > 1 else 0
                begun |= found
        order = random.Random(seed).sample(range(len(parameters)), len(parameters))
        values = {slot: take_value(parameters[slot].leaf, queue, slot) for slot in order}
        for slot, p in enumerate(parameters):
            expected = ops.reshard(p.leaf.detach(), *p.programs[:2])
            assert torch.equal(values[slot], expected), f"seed {seed}: {p.name}"
            assert values[slot].is_contiguous()
        assert len({v.untyped_storage().data_ptr() for v in values.values()}) == len(values)
    return together


def test_values_that_are_gathered_together() -> None:
    first_seed = random.randrange(1000)
    print(f"first seed {first_seed}")
    assert min(run_ranks(4, f"{HERE}:run_values", first_seed)) > 0


def test_a_queue_has_a_place() -> None:
    with pytest.raises(ValueError, match="give at least 1"):
        parameter_queue(most_under_way=0)
