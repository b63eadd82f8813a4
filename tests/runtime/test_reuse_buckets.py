"""Tensor reuse by bucket: parameters that one collective makes again in backward."""

from __future__ import annotations

import gc
import random

import pytest
import torch

from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.reuse import ReuseRegistry, keep_before
from tests.distributed.harness import run_ranks

HERE = "tests.runtime.test_reuse_buckets"
Tensor = torch.Tensor


def made_again_together(payload: tuple[int, bool]) -> tuple[bool, int, int, int]:
    """Layers whose weights are gathered, each by itself in forward, in buckets in backward;
    biases are not saved. Whether the gradients are those without reuse, bit for bit; and the
    all-gathers of backward, the weights, and the buckets."""
    seed, ahead = payload
    rank = torch.distributed.get_rank()
    groups = AxisGroups((2,))
    groups.create([1])
    names = [groups.name(1)]
    choose = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dims = [choose.randrange(2) for _ in range(8)]
    buckets = sorted(choose.randrange(4) for _ in dims)
    parameters = [
        torch.randn(*((6, 3) if dim else (3, 6)), generator=generator).requires_grad_()
        for dim in dims
    ]
    x = torch.randn(5, 6, generator=generator, requires_grad=True)

    def gradients(keep: bool) -> list[Tensor]:
        with ReuseRegistry(ahead) as registry:
            y = x
            for dim, bucket, parameter in zip(dims, buckets, parameters, strict=True):
                program = [0, dim, -1, 0, 2, rank]
                weight = ops.reshard(parameter, program, names, [1, dim, -1, 0, 2, rank], names)
                bias = ops.reshard(x.detach()[0, :3], [0, 0, -1, 0, 2, rank], names)
                if keep:
                    keep_before(weight, parameter, program, names, bucket=bucket, gathered_dim=dim)
                    bias_program = [0, 0, -1, 0, 2, rank]
                    place = {"bucket": bucket, "gathered_dim": 0}
                    keep_before(bias, x.detach()[0, :3], bias_program, names, **place)
                y = torch.nn.functional.linear(y, weight, bias).relu()
                del weight, bias
        ops.reset_collective_counts()
        found = torch.autograd.grad(y.sum(), parameters)
        assert registry.counts.replays == (len(dims) if keep else 0)
        return list(found)

    expected = gradients(False)
    found = gradients(True)
    same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    return same, ops.collective_counts().all_gather, len(dims), len(set(buckets))


@pytest.mark.parametrize("ahead", [False, True])
def test_weights_of_a_bucket_are_made_again_by_one_collective(ahead: bool):
    seed = random.randrange(1000)
    print(f"seed {seed}")
    results = run_ranks(2, f"{HERE}:made_again_together", (seed, ahead))
    for same, gathers, weights, buckets in results:
        assert same
        assert gathers == buckets < weights


def order_of_programs(ahead: bool) -> list[int]:
    """Programs begun when backward comes to each layer, the last first."""
    rank = torch.distributed.get_rank()
    groups = AxisGroups((2,))
    groups.create([1])
    names = [groups.name(1)]
    weights = [torch.randn(3, 6) for _ in range(4)]
    seen: list[int] = []
    with ReuseRegistry(ahead):
        y = torch.randn(5, 6, requires_grad=True)
        for bucket, weight in enumerate(weights):
            program = [0, 0, -1, 0, 2, rank]
            whole = ops.reshard(weight, program, names)
            keep_before(whole, weight, program, names, bucket=bucket, gathered_dim=0)
            y = torch.nn.functional.linear(y, whole).sin()
            y.register_hook(lambda _: seen.append(ops.collective_counts().programs))
            del whole
    ops.reset_collective_counts()
    y.sum().backward()
    return seen


def test_the_next_bucket_begins_while_one_is_used():
    assert run_ranks(2, f"{HERE}:order_of_programs", False) == [[0, 1, 2, 3]] * 2
    assert run_ranks(2, f"{HERE}:order_of_programs", True) == [[0, 2, 3, 4]] * 2


def in_many_passes(payload: tuple[int, bool]) -> bool:
    """Passes that reach some of the buckets, twice through one graph, and a graph that is
    dropped: gradients are those without reuse, bit for bit."""
    seed, ahead = payload
    rank = torch.distributed.get_rank()
    groups = AxisGroups((2,))
    groups.create([1])
    names = [groups.name(1)]
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(3, 6, generator=generator).requires_grad_() for _ in range(6)]
    x = torch.randn(5, 6, generator=generator, requires_grad=True)
    program, back = [0, 0, -1, 0, 2, rank], [1, 0, -1, 0, 2, rank]

    def gradients(keep: bool) -> list[Tensor]:
        outputs = [x]
        with ReuseRegistry(ahead):
            for index, weight in enumerate(weights):
                whole = ops.reshard(weight, program, names, back, names)
                if keep:
                    keep_before(whole, weight, program, names, bucket=index // 2, gathered_dim=0)
                outputs.append(torch.nn.functional.linear(outputs[-1], whole).sin())
                del whole
            dropped = outputs[-1].sum() * 2
        del dropped
        last, middle = outputs[-1], outputs[3]
        found = [torch.autograd.grad(last.sum(), outputs[4], retain_graph=True)[0]]
        found += torch.autograd.grad(middle.sum(), weights[:3], retain_graph=True)
        for _ in range(2):
            found += torch.autograd.grad(last.sum(), weights, retain_graph=True)
        return found

    gc.disable()  # nothing waits for the collector
    expected, found = gradients(False), gradients(True)
    gc.enable()
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("ahead", [False, True])
def test_buckets_in_passes_that_reach_a_part_and_in_repeated_ones(ahead: bool):
    seed = random.randrange(1000)
    print(f"seed {seed}")
    assert run_ranks(2, f"{HERE}:in_many_passes", (seed, ahead)) == [True, True]
