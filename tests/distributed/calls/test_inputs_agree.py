"""Inputs that every rank gets whole are compared at every call: one that differs is an error on
all ranks, which names it, and nothing has happened; training without such a call is as in one
process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import ParallelModule, TensorOptError
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.plan import Plan
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.calls.test_inputs_agree"
STEPS = 5
POINTS = ["fastest", "smallest", "random 1", "random 2"]


class Net(nn.Module):
    """Counts its batches, so that a call that went wrong would be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(b, 8), (8,) -> (b, 4)."""
        return self.head(self.norm(self.body(x * mask)).relu())


def batch(step: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(8, 8, generator=generator), torch.randn(8, 4, generator=generator)
    return x, torch.randint(2, (8,), generator=generator).float(), y


def own(tensors: tuple[torch.Tensor, ...], inputs: Any) -> tuple[torch.Tensor, ...]:
    """What a rank gets of a batch."""
    if inputs == "replicated":
        return tensors
    x, mask, y = tensors
    world, rank = dist.get_world_size(), dist.get_rank()
    return x.chunk(world)[rank], mask, y.chunk(world)[rank]


def module(inputs: Any, point: str) -> ParallelModule:
    torch.manual_seed(0)
    x, mask, y = batch(0)
    model = Net()
    frontier = tensoropt_torch.find_frontier(
        model,
        (x, mask),
        loss_fn=F.mse_loss,
        targets=(y,),
        inputs=inputs,
        num_devices=dist.get_world_size(),
        cluster="cpu",
    )
    ends = {"fastest": frontier.fastest.plan, "smallest": frontier.smallest.plan}
    plan = ends[point] if point in ends else random_plan(frontier.fastest.plan, int(point[-1]))
    return tensoropt_torch.parallelize(model, plan)


def random_plan(plan: Plan, seed: int) -> Plan:
    assert plan.captured is not None
    space = make_space(plan.captured, plan.settings)
    return Plan.of(space, plan.settings, plan.captured, space.random_strategy(seed))


def train(net: nn.Module, call: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    """The losses of all steps, then what the module has at the end."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        loss = call(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    values = [*net.parameters(), *net.buffers()]
    found += [v.full_tensor() if hasattr(v, "full_tensor") else v.detach() for v in values]
    return found


def expected() -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = Net()

    def call(step: int) -> torch.Tensor:
        x, mask, y = batch(step)
        return F.mse_loss(net(x, mask), y)

    return train(net, call)


def check(job: tuple[Any, str, int]) -> None:
    """Each rank in turn gets another input, in a step that then goes on with the right one."""
    inputs, point, wrong_place = job
    parallel = module(inputs, point)
    calls = [0]

    def called(*args: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        loss: torch.Tensor = parallel(*args)
        return loss

    def call(step: int) -> torch.Tensor:
        right = own(batch(step), inputs)
        wrong_rank = step % dist.get_world_size()
        wrong = list(right)
        if dist.get_rank() == wrong_rank:
            wrong[wrong_place] = wrong[wrong_place].flip(0) + 1
        name = ("x", "mask", "target")[wrong_place]
        if step >= 2:
            other = max(wrong_rank, 1)
            message = f"'{name}' is not the same on rank 0 and on rank {other} in call"
            with pytest.raises(TensorOptError, match=f"{message} {calls[0] + 1}, but"):
                called(*wrong)
            assert parallel.training
        return called(*right)

    for one, other in zip(train(parallel, call), expected(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("point", POINTS)
def test_replicated_inputs_are_compared_at_each_call(point: str) -> None:
    run_ranks(2, f"{HERE}:check", ("replicated", point, POINTS.index(point) % 3))


def test_inputs_that_are_named_are_compared_under_shares() -> None:
    run_ranks(2, f"{HERE}:check", ({"mask": "replicated"}, "fastest", 1))


def test_among_four_ranks() -> None:
    run_ranks(4, f"{HERE}:check", ("replicated", "smallest", 0))


def check_evaluation(_: None) -> None:
    parallel = module("replicated", "fastest").eval()
    x, mask, _ = batch(0)
    rank = dist.get_rank()
    with torch.no_grad():
        outputs = parallel(x, mask)
        with pytest.raises(TensorOptError, match="'mask' is not the same on rank 0 and on rank 1"):
            parallel(x, mask + rank)
        assert torch.equal(parallel(x, mask), outputs)


def test_calls_without_gradients_are_compared() -> None:
    run_ranks(2, f"{HERE}:check_evaluation")


def check_deferred(_: None) -> None:
    """As on devices that the host does not wait for: a call later, and once."""
    parallel = module("replicated", "fastest")
    variants = programs_of(parallel).variants
    assert variants is not None
    variants._comparison._deferred = True
    rank = dist.get_rank()
    for _ in range(2):
        for step in range(3):
            parallel(*batch(step)).backward()
        calls = variants._comparison.calls
        x, mask, y = batch(4)
        parallel(x + rank, mask, y).backward()
        message = f"'x' is not the same .* in call {calls + 1}, which is found out a call later"
        with pytest.raises(TensorOptError, match=message):
            parallel(*batch(5))
    # Neither the call that was refused nor one of another kind is compared again.
    parallel(*batch(6)).backward()
    with pytest.raises(TensorOptError, match="ranks call the module differently"):
        parallel.train(rank == 0)(x + rank, mask, y)
    parallel.train()
    parallel(*batch(7)).backward()
    with torch.no_grad(), pytest.raises(TensorOptError, match="'mask' is not the same"):
        parallel(x, mask + rank, y)  # the first of its kind is compared at once
    parallel(*batch(8)).backward()


def test_a_comparison_that_is_put_off() -> None:
    run_ranks(2, f"{HERE}:check_deferred")


def check_uneven(deferred: bool) -> None:
    """Calls with shares of different sizes, whose rows are gathered."""
    parallel = module({"mask": "replicated"}, "fastest")
    variants = programs_of(parallel).variants
    assert variants is not None
    variants._comparison._deferred = deferred
    rank = dist.get_rank()
    x, mask, y = batch(0)
    rows = slice(0, 5) if rank == 0 else slice(5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            loss = parallel(x[rows], mask, y[rows])
            with pytest.raises(TensorOptError, match="'mask' is not the same on rank 0"):
                parallel(x[rows], mask + rank, y[rows])
    torch.manual_seed(0)
    torch.testing.assert_close(loss, F.mse_loss(Net()(x, mask), y))


@pytest.mark.parametrize("deferred", [False, True])
def test_of_a_batch_that_is_gathered(deferred: bool) -> None:
    run_ranks(2, f"{HERE}:check_uneven", deferred)


class Scaled(nn.Module):
    """Times a number that is a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """(b, 8), () -> a number."""
        return (self.head(x) * scale).square().mean()


def check_scalar(_: None) -> None:
    """It has no rows, so that each rank has all of it also where inputs are shares."""
    torch.manual_seed(0)
    x, scale = torch.randn(8, 8), torch.tensor(2.0)
    parallel = tensoropt_torch.auto_parallel(Scaled(), (x, scale), inputs="sharded", measure=False)
    share = x.chunk(2)[dist.get_rank()]
    parallel(share, scale).backward()
    with pytest.raises(TensorOptError, match="'scale' is not the same on rank 0 and on rank 1"):
        parallel(share, scale + dist.get_rank())
    parallel(share, scale * 3).backward()


def test_a_tensor_without_dims_is_compared_under_shares() -> None:
    run_ranks(2, f"{HERE}:check_scalar")


def check_keywords(_: None) -> None:
    """In another order than that of their names, with uneven shares."""
    parallel = module({"mask": "replicated"}, "fastest")
    x, mask, _ = batch(0)
    rank = dist.get_rank()
    rows = slice(0, 5) if rank == 0 else slice(5, 8)
    parallel.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = parallel(x=x[rows], mask=mask)
        torch.manual_seed(0)
        torch.testing.assert_close(found, Net().eval()(x, mask)[rows])
        with pytest.raises(TensorOptError, match="'mask' is not the same"):
            parallel(x=x[rows], mask=mask + rank)


def test_keywords_in_any_order() -> None:
    run_ranks(2, f"{HERE}:check_keywords")
