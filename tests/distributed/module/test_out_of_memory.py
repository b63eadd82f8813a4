"""Steps that run out of memory go on under a smaller plan, as if it had been there before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import tensoropt_torch
from tensoropt_torch import ParallelModule, TensorOptError
from tensoropt_torch.module import executor, out_of_memory
from tests.distributed.harness import run_ranks
from tests.distributed.module.test_moving import (
    TOLERANCE,
    Layers,
    Run,
    batch,
    differing,
    everything,
    frontier_of,
    inputs_of,
    net,
)

HERE = "tests.distributed.module.test_out_of_memory"
FORWARD, BACKWARD = "forward", "backward"


class RunsOut(TorchDispatchMode):
    """Raises at one of the operators, numbered from 0; counts them."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.at = at
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count - 1 == self.at:
            raise torch.OutOfMemoryError("simulated")
        return func(*args, **(kwargs or {}))


class Memory:
    """Runs out once, on one rank, at an operator of a phase.

    Attributes:
        counts: how many operators the last forward and backward had on this rank.
    """

    def __init__(self) -> None:
        self.counts = {FORWARD: 0, BACKWARD: 0}
        self._place: tuple[str, int, float] | None = None

    def runs_out(self, phase: str, rank: int, share: float) -> None:
        """Next time, after this share of its operators."""
        self._place = phase, rank, share

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        place, at = self._place, None
        if place is not None and place[:2] == (phase, dist.get_rank()):
            self._place, at = None, int(place[2] * self.counts[phase])
        with RunsOut(at) as mode:
            yield
        self.counts[phase] = mode.count

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, it is that of guarded calls."""
        run_schedule, run_backward = executor.run_schedule, out_of_memory._Call.run_backward

        def forward(*args: Any) -> Any:
            with self.of(FORWARD):
                return run_schedule(*args)

        def backward(*args: Any) -> None:
            with self.of(BACKWARD):
                run_backward(*args)

        with (
            mock.patch.object(executor, "run_schedule", forward),
            mock.patch.object(out_of_memory._Call, "run_backward", backward),
        ):
            yield


def guarded(model: nn.Module, frontier: tensoropt_torch.Frontier) -> ParallelModule:
    return tensoropt_torch.parallelize(model, frontier.fastest.plan, on_out_of_memory="smaller")


@dataclass
class Chain:
    seed: int
    steps: int


def run_chain(chain: Chain) -> tuple[list[str], int]:
    """What is wrong, by step, and how often memory ran out."""
    draw, ranks = random.Random(chain.seed), dist.get_world_size()
    frontier, memory = frontier_of(net()), Memory()
    module = guarded(net(), frontier)
    run, alone = Run(module, "adamw"), Run(net(), "adamw")
    # The same plans from the same steps on, by move_to.
    twin = Run(tensoropt_torch.parallelize(net(), frontier.fastest.plan), "adamw")
    wrong, expected = [], 0
    with memory.in_use():
        for number in range(chain.steps):
            phase, rank = draw.choice((FORWARD, BACKWARD)), draw.randrange(ranks)
            share = draw.random()
            if number > 0:
                memory.runs_out(phase, rank, share)
                expected += 1
            loss = run.step(number)
            if number > 0:
                last = module.out_of_memory[-1]
                if (last.phase, last.ranks, last.call) != (phase, (rank,), number + 1):
                    wrong.append(f"{number}: {last}")
                if last.after.memory_bytes >= last.before.memory_bytes:
                    wrong.append(f"{number}: not smaller, {last}")
                twin.module.move_to(last.after)
            other, one = twin.step(number), alone.step(number)
            if phase == FORWARD and loss != other:
                wrong.append(f"{number}: loss {loss}, but {other} under the same plan")
            if loss != pytest.approx(one, rel=TOLERANCE):
                wrong.append(f"{number}: loss {loss}, but {one} in one process")
            found, same = (everything(r.module, r.optimizer) for r in (run, twin))
            for name in differing(found, same):
                gap = (found[name] - same[name]).abs().max()
                if phase == FORWARD or gap > 1e-9:
                    wrong.append(f"{number}, {phase}: '{name}' differs by {gap}")
    if len(module.out_of_memory) != expected:
        wrong.append(f"{len(module.out_of_memory)} times, but {expected} were asked for")
    return wrong, expected


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_steps_are_repeated_under_smaller_plans_as_if_these_had_been_there(ranks: int) -> None:
    seed = ranks
    print("seed", seed)
    for wrong, count in run_ranks(ranks, f"{HERE}:run_chain", Chain(seed, 4), 120):
        assert wrong == []
        assert count == 3


def run_ends(_: None) -> list[str]:
    """Where there is no smaller plan, several calls wait for one backward, gradients are added
    up, or something is not supported."""
    frontier, memory = frontier_of(net()), Memory()
    module = tensoropt_torch.parallelize(net(), frontier.smallest.plan, on_out_of_memory="smaller")
    run, alone = Run(module, "sgd"), Run(net(), "sgd")
    found = []
    with memory.in_use():
        assert run.step(0) == pytest.approx(alone.step(0), rel=TOLERANCE)
        before = everything(module, run.optimizer)
        memory.runs_out(FORWARD, 1, 0.5)
        with pytest.raises(TensorOptError) as caught:
            module(*batch(1))
        found.append(str(caught.value))
        assert differing(before, everything(module, run.optimizer)) == []
        assert run.step(1) == pytest.approx(alone.step(1), rel=TOLERANCE)  # it goes on
        check_calls_together(memory)
    for options in ({"compile": True}, {"one_process_random": True}):
        with pytest.raises(TensorOptError) as caught:
            tensoropt_torch.parallelize(
                net(), frontier.fastest.plan, on_out_of_memory="smaller", **options
            )
        found.append(str(caught.value))
    with pytest.raises(TensorOptError) as caught:
        tensoropt_torch.parallelize(net(), frontier.fastest.plan, on_out_of_memory="small")  # type: ignore[arg-type]
    return [*found, str(caught.value)]


def check_calls_together(memory: Memory) -> None:
    """Two calls before one backward, onto gradients that are there; an input has a gradient."""
    frontier = tensoropt_torch.find_frontier(Layers(), inputs_of(0))
    module, alone = guarded(Layers(), frontier), Layers()
    gradients: list[Any] = []
    for model in (module, alone):
        model(*inputs_of(3)).backward()
        x = inputs_of(4)[0].requires_grad_()
        losses = model(*inputs_of(0)) + 2 * model(x, inputs_of(4)[1])
        if model is module:
            memory.runs_out(BACKWARD, 0, 0.5)
        losses.backward()
        gradients.append(x.grad)
    assert [event.phase for event in module.out_of_memory] == [BACKWARD]
    torch.testing.assert_close(*gradients, rtol=TOLERANCE, atol=TOLERANCE)
    for own, one in zip(module.parameters(), alone.parameters(), strict=True):
        gradient = own.grad.full_tensor()  # type: ignore[union-attr]
        torch.testing.assert_close(gradient, one.grad, rtol=TOLERANCE, atol=TOLERANCE)


def test_calls_wait_for_one_backward_and_where_no_plan_is_smaller_all_ranks_say_so() -> None:
    expected = [
        "rank 1 ran out of memory in the forward of call 2, and on_out_of_memory='smaller' finds "
        "no plan that needs less",
        "compile=True do not go together",
        "one_process_random=True do not go together",
        "on_out_of_memory='small' is not known; did you mean 'smaller'?",
    ]
    for found in run_ranks(2, f"{HERE}:run_ends", None, 120):
        for text, words in zip(found, expected, strict=True):
            assert words in text


class Dropping(nn.Module):
    """Draws random numbers in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(52, 24), nn.Linear(24, 52)
        self.up, self.down = nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.embed(tokens), 0.4, self.training)
        x = x + F.dropout(self.down(self.up(x).relu()), 0.4, self.training)
        return F.cross_entropy(self.head(x), targets)


def dropping() -> Dropping:
    torch.manual_seed(0)
    return Dropping().double()


def run_dropout(phase: str) -> list[str]:
    """What differs from a twin that went to the same plan by ``move_to`` before the step."""
    frontier, memory = frontier_of(dropping()), Memory()
    run = Run(guarded(dropping(), frontier), "adamw")
    twin = Run(tensoropt_torch.parallelize(dropping(), frontier.fastest.plan), "adamw")
    wrong = []
    with memory.in_use():
        losses = [run.step(0), twin.step(0)]
        if losses[0] != losses[1]:
            wrong.append(f"before: {losses}")
        memory.runs_out(phase, 1, 0.5)
        loss = run.step(1)
        (event,) = run.module.out_of_memory  # type: ignore[union-attr]
        twin.module.move_to(event.after)  # type: ignore[operator]
        other = twin.step(1)
        if phase == FORWARD and loss != other:
            wrong.append(f"loss {loss}, but {other}")
        found, same = (everything(r.module, r.optimizer) for r in (run, twin))  # type: ignore[arg-type]
        gaps = {
            name: float((found[name] - same[name]).abs().max()) for name in differing(found, same)
        }
        wrong += [f"'{name}' differs by {gap}" for name, gap in gaps.items() if gap > 1e-9]
        losses = [run.step(2), twin.step(2)]  # the numbers after it are those that come next
        if losses[0] != pytest.approx(losses[1], rel=1e-9):
            wrong.append(f"afterwards: {losses}")
        with torch.no_grad():
            if run.module(*batch(3)) == run.module(*batch(3)):
                wrong.append("nothing is drawn")
    return wrong


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD])
def test_a_repeated_step_draws_the_numbers_of_the_step(phase: str) -> None:
    for wrong in run_ranks(2, f"{HERE}:run_dropout", phase, 120):
        assert wrong == []


class Shifted(nn.Module):
    """An input that PyTorch keeps nothing of for backward, so that it may be written to."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(12, 48), nn.Linear(48, 12)

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return (self.down(self.up(x).relu()) + shift).square().mean()


def made_shifted() -> Shifted:
    torch.manual_seed(0)
    return Shifted().double()


def run_refusals(_: None) -> list[str]:
    """What a repeated backward cannot have, on all ranks, though memory is out on one."""
    frontier, memory = tensoropt_torch.find_frontier(Layers(), inputs_of(0)), Memory()
    found = []

    def refused(action: Callable[[], object]) -> None:
        with pytest.raises(TensorOptError) as caught:
            action()
        found.append(str(caught.value))

    with memory.in_use():
        module = guarded(Layers(), frontier)
        loss = module(*inputs_of(0))
        parameters = list(module.parameters())
        refused(lambda: torch.autograd.grad(loss, parameters, create_graph=True))
        run = Run(module, "sgd")
        module(*inputs_of(1)).backward()
        loss = module(*inputs_of(2))
        run.optimizer.step()
        memory.runs_out(BACKWARD, 1, 0.5)
        refused(loss.backward)
        x, shift = inputs_of(3)[0], torch.zeros(12).double()
        shifted = tensoropt_torch.find_frontier(made_shifted(), (x, shift))
        module = guarded(made_shifted(), shifted)
        module(x, shift).backward()  # so that operators of backward are counted
        loss = module(x, shift)
        shift.add_(1.0)
        memory.runs_out(BACKWARD, 1, 0.5)
        refused(loss.backward)
        module(x, shift).backward()  # it goes on
    return found


def test_what_cannot_be_repeated_is_one_error_on_all_ranks() -> None:
    expected = [
        "gradients cannot be differentiated (create_graph=True)",
        "an optimizer made a step between call 3 and its backward",
        "an input of call 2, of shape",
    ]
    for found in run_ranks(2, f"{HERE}:run_refusals", None, 120):
        for text, words in zip(found, expected, strict=True):
            assert words in text
