"""``masked_scatter`` where each rank has some of the rows, against one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tensoropt_torch.operators import OPS
from tensoropt_torch.runtime.groups import AxisGroups
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.rules.test_masked_scatter"


def check_parts(_: None) -> None:
    world = AxisGroups((4,))
    world.create([1])
    rank = dist.get_rank()
    random = torch.Generator().manual_seed(0)
    x, source = (torch.randn(8, 3, generator=random).requires_grad_() for _ in range(2))
    mask = torch.rand(8, 3, generator=random) < 0.5
    whole = x.masked_scatter(mask, source)
    weights = torch.randn(8, 3, generator=random)
    of_x, of_source = torch.autograd.grad((whole * weights).sum(), (x, source))
    parts = [tensor.detach().chunk(4)[rank] for tensor in (x, mask, weights)]
    part, own = parts[0].requires_grad_(), source.detach().requires_grad_()
    got = OPS.masked_scatter_shard(part, parts[1], own, world.name(1))
    torch.testing.assert_close(got, whole.chunk(4)[rank])
    found = torch.autograd.grad((got * parts[2]).sum(), (part, own))
    torch.testing.assert_close(found[0], of_x.chunk(4)[rank])
    dist.all_reduce(found[1])
    torch.testing.assert_close(found[1], of_source)


def test_parts_take_what_follows_on_those_before() -> None:
    run_ranks(4, f"{HERE}:check_parts", None)


@pytest.mark.parametrize("world", [2, 4])
def test_pictures_in_a_text_equal_one_process(world: int) -> None:
    kind = "tests.distributed.masked_models:pictures_in_text"
    assert run_ranks(world, "tests.distributed.kinds:check", kind, 200) == [[]] * world
