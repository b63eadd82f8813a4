"""The fused reshard operator against slicing and summing the global tensor."""

from __future__ import annotations

import copy
import random
from collections import Counter
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tensoropt_torch import _C
from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.meshes import all_axis_sets
from tests.distributed.harness import run_ranks
from tests.distributed.layouts import (
    all_layouts,
    axes_with,
    block,
    gradient_layouts,
    local_part,
    num_ranks,
)

HERE = "tests.distributed.runtime.test_reshard"
Sizes = tuple[int, ...]
STEP_NAMES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice", "mask")


class Reshards:
    """Encoded programs for one tensor shape on the running ranks."""

    def __init__(
        self,
        sizes: Sizes,
        shape: tuple[int, ...],
        uneven: bool = False,
        units: tuple[int, ...] = (),
    ) -> None:
        self.sizes = sizes
        self.units = units
        self.rank = dist.get_rank()
        self.groups = AxisGroups(sizes)
        self.groups.create(all_axis_sets(sizes))
        device = _C.Device()
        cluster = _C.Cluster(
            "test",
            device,
            [
                _C.Level(name=str(i), count=n, bandwidth_bytes_per_s=1e9, latency_s=1e-6)
                for i, n in enumerate(sizes)
            ],
        )
        mesh = _C.Mesh([(n, i) for i, n in enumerate(sizes)])
        model = _C.AnalyticCollectives(cluster, mesh)
        self._make = partial(_C.TensorResharder, mesh, model, device)
        self._resharder = self._make(
            _C.ReshardedTensor(shape=shape, item_size=4, uneven=uneven, units=units)
        )

    def of_shape(self, shape: tuple[int, ...]) -> Reshards:
        """For another shape, whose parts may differ, over the same groups."""
        other = copy.copy(self)
        other._resharder = self._make(_C.ReshardedTensor(shape=shape, item_size=4, uneven=True))
        return other

    def encode(self, source: str, target: str) -> tuple[list[int], list[str]]:
        program = self._resharder.encode(source, target, self.rank)
        return program.steps, [self.groups.name(axes) for axes in program.groups]

    def describe(self, source: str, target: str) -> str:
        return f"{source} -> {target}: {self._resharder.describe(source, target)}"

    def total(self, local: torch.Tensor, layout: str) -> torch.Tensor:
        """The local part with pending sums done."""
        axes = axes_with(layout, "P")
        result = local.detach().clone()
        if axes:
            dist.all_reduce(result, group=self.groups.group(axes))
        return result


def whole_tensor(shape: tuple[int, ...], dtype: torch.dtype, start: int = 1) -> torch.Tensor:
    """Small integers, so that sums are exact in every dtype."""
    numbers = torch.arange(start, start + torch.Size(shape).numel())
    return (numbers % 101).reshape(shape).to(dtype)


def check_pair(
    reshards: Reshards,
    value: tuple[str, str],
    gradient: tuple[str, str],
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Forward along ``value``; backward along ``gradient`` (from output to input); backward of
    that along ``value`` again."""
    rank, sizes, units = reshards.rank, reshards.sizes, reshards.units
    message = f"rank {rank}: {reshards.describe(*value)}; {reshards.describe(*gradient)}"
    whole = whole_tensor(shape, dtype)
    whole_gradient = whole_tensor(shape, dtype, start=7)
    before = local_part(whole, value[0], sizes, rank, units=units)
    x = before.clone().requires_grad_()
    y = ops.reshard(x, *reshards.encode(*value), *reshards.encode(*gradient))
    assert torch.equal(x, before), f"{message}: the input changed"
    assert y.is_contiguous(), message
    expected = block(whole, value[1], sizes, rank, units)
    assert torch.equal(reshards.total(y, value[1]), expected), message
    dy = local_part(whole_gradient, gradient[0], sizes, rank, seed=1, units=units)
    dy.requires_grad_()
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    expected = block(whole_gradient, gradient[1], sizes, rank, units)
    assert torch.equal(reshards.total(dx, gradient[1]), expected), message
    whole_again = whole_tensor(shape, dtype, start=13)
    ddx = local_part(whole_again, value[0], sizes, rank, seed=2, units=units)
    (ddy,) = torch.autograd.grad(dx, dy, ddx)
    expected = block(whole_again, value[1], sizes, rank, units)
    assert torch.equal(reshards.total(ddy, value[1]), expected), message


def check_all_pairs(payload: tuple[Sizes, tuple[int, ...], bool, tuple[int, ...]]) -> int:
    sizes, shape, uneven, units = payload
    reshards = Reshards(sizes, shape, uneven, units)
    layouts = all_layouts(sizes, shape, uneven, units)
    checked = 0
    for source in layouts:
        for target in layouts:
            rng = random.Random(f"{source}->{target}")  # the same on all ranks
            gradient = (
                rng.choice(gradient_layouts(target)),
                rng.choice(gradient_layouts(source)),
            )
            check_pair(reshards, (source, target), gradient, shape)
            checked += 1
    return checked


@pytest.mark.parametrize(
    ("sizes", "shape", "pairs"),
    [
        ((2,), (4, 6), 16),
        ((4,), (4, 8), 16),
        ((2, 2), (4, 8), 256),
        ((2, 2), (2, 4), 225),  # not all layouts divide
        ((2,), (2, 4, 6), 25),
        ((2, 2), (4, 4, 8), 625),
    ],
)
def test_every_pair_of_layouts(sizes: Sizes, shape: tuple[int, ...], pairs: int):
    payload = (sizes, shape, False, ())
    checked = run_ranks(num_ranks(sizes), f"{HERE}:check_all_pairs", payload, 300)
    assert checked == [pairs] * num_ranks(sizes)


@pytest.mark.parametrize(
    ("sizes", "shape", "pairs"),
    [
        ((2,), (5, 7), 16),
        ((3,), (5, 2, 7), 16),  # not dim 1, of which one rank would have nothing
        ((4,), (7, 12), 16),  # chunks of 2 leave 1 for the last rank
        ((2, 2), (7, 10), 256),
        ((2, 2), (5, 3), 225),
    ],
)
def test_every_pair_of_uneven_layouts(sizes: Sizes, shape: tuple[int, ...], pairs: int):
    payload = (sizes, shape, True, ())
    checked = run_ranks(num_ranks(sizes), f"{HERE}:check_all_pairs", payload, 300)
    assert checked == [pairs] * num_ranks(sizes)


@pytest.mark.parametrize(
    ("sizes", "shape", "units", "pairs"),
    [
        ((3,), (10, 6), (2, 1), 16),
        ((2, 2), (28, 6), (4, 1), 256),
        ((2, 2), (10, 21), (2, 3), 256),
    ],
)
def test_units_stay_together(
    sizes: Sizes, shape: tuple[int, ...], units: tuple[int, ...], pairs: int
):
    payload = (sizes, shape, True, units)
    checked = run_ranks(num_ranks(sizes), f"{HERE}:check_all_pairs", payload, 300)
    assert checked == [pairs] * num_ranks(sizes)


def check_random_shapes(seeds: range) -> int:
    checked = 0
    groups: dict[Sizes, Reshards] = {}
    for seed in seeds:
        rng = random.Random(seed)
        sizes = rng.choice([(4,), (2, 2)])
        shape = tuple(rng.randint(1, 13) for _ in range(rng.randint(1, 3)))
        if sizes not in groups:
            groups[sizes] = Reshards(sizes, shape)
        reshards = groups[sizes].of_shape(shape)
        layouts = all_layouts(sizes, shape, uneven=True)
        for _ in range(10):
            source, target = rng.choice(layouts), rng.choice(layouts)
            gradient = (
                rng.choice(gradient_layouts(target)),
                rng.choice(gradient_layouts(source)),
            )
            dtype = rng.choice([torch.float32, torch.bfloat16, torch.float64])
            try:
                check_pair(reshards, (source, target), gradient, shape, dtype)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, shape {shape}: {error}") from error
            checked += 1
    return checked


def test_random_uneven_shapes():
    checked = run_ranks(4, f"{HERE}:check_random_shapes", range(60), 300)
    assert checked == [600] * 4


def check_dtypes(sizes: Sizes) -> None:
    shape = (4, 8)
    reshards = Reshards(sizes, shape)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        for source, target in (("P,S0", "S1,R"), ("S0,S1", "S1,P"), ("S0,S0", "R,R")):
            check_pair(reshards, (source, target), (target, source), shape, dtype)
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        whole = whole_tensor(shape, dtype)
        for source, target in (("S0,S1", "S1,S1"), ("S0,S0", "R,R"), ("R,R", "S1,S0")):
            x = block(whole, source, sizes, reshards.rank)
            y = ops.reshard(x, *reshards.encode(source, target))
            assert not y.requires_grad
            assert torch.equal(y, block(whole, target, sizes, reshards.rank)), dtype
    sums = torch.arange(32).reshape(shape)
    x = local_part(sums, "P,P", sizes, reshards.rank)
    y = ops.reshard(x, *reshards.encode("P,P", "S0,R"))
    assert torch.equal(y, block(sums, "S0,R", sizes, reshards.rank))


def test_other_dtypes():
    run_ranks(4, f"{HERE}:check_dtypes", (2, 2))


def check_strided_operands(sizes: Sizes) -> None:
    shape = (4, 8)
    reshards = Reshards(sizes, shape)
    whole = whole_tensor(shape, torch.float32)
    for source, target in (("S0,S1", "S1,S0"), ("P,R", "S1,S0"), ("R,P", "R,R")):
        part = local_part(whole, source, sizes, reshards.rank)
        x = part.t().contiguous().t().requires_grad_()
        y = ops.reshard(x, *reshards.encode(source, target), *reshards.encode(target, source))
        expected = block(whole, target, sizes, reshards.rank)
        assert torch.equal(reshards.total(y, target), expected)
        y.sum().backward()  # an expanded gradient, with strides of 0
        assert x.grad is not None
        ones = torch.ones(shape)
        summands = 1 if "P" not in target else 2
        expected = block(ones * summands, source, sizes, reshards.rank)
        assert torch.equal(reshards.total(x.grad, source), expected)


def test_operands_need_not_be_contiguous():
    run_ranks(4, f"{HERE}:check_strided_operands", (2, 2))


def check_empty_programs(sizes: Sizes) -> None:
    shape = (4, 8)
    reshards = Reshards(sizes, shape)
    whole = whole_tensor(shape, torch.float32)
    x = block(whole, "R", sizes, reshards.rank).requires_grad_()
    ops.reset_collective_counts()

    # Nothing forward, an all-reduce backward (Megatron's f).
    y = ops.reshard(x, [], [], *reshards.encode("P", "R"))
    assert y.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert ops.collective_counts().programs == 0
    (y * (reshards.rank + 1)).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full(shape, 3.0))
    assert ops.collective_counts().all_reduce == 1

    # An all-reduce forward, nothing backward (Megatron's g).
    x.grad = None
    y = ops.reshard(x, *reshards.encode("P", "R"), [], [])
    assert torch.equal(y, 2 * whole)
    (y * (reshards.rank + 1)).sum().backward()
    assert torch.equal(x.grad, torch.full(shape, reshards.rank + 1.0))

    assert torch.equal(ops.reshard(x.detach(), [], []), x)


def test_empty_programs():
    run_ranks(2, f"{HERE}:check_empty_programs", (2,))


def check_counts(sizes: Sizes) -> list[ops.CollectiveCounts]:
    shape = (4, 8)
    reshards = Reshards(sizes, shape)
    layouts = all_layouts(sizes, shape)
    counts = []
    for source in layouts:
        for target in layouts:
            steps, names = reshards.encode(source, target)
            x = torch.zeros(block(torch.zeros(shape), source, sizes, reshards.rank).shape)
            ops.reset_collective_counts()
            ops.reshard(x, steps, names)
            expected = Counter(STEP_NAMES[kind] for kind in steps[::6])
            got = ops.collective_counts()
            assert {name: getattr(got, name) for name in STEP_NAMES} == {
                name: expected[name] for name in STEP_NAMES
            }
            assert got.programs == bool(steps)
            counts.append(got)
    return counts


def test_counts_are_those_of_the_program():
    first, *others = run_ranks(4, f"{HERE}:check_counts", (2, 2))
    assert all(counts == first for counts in others)
    for name in STEP_NAMES:  # every kind of step was run
        assert sum(getattr(counts, name) for counts in first) > 0


def check_result_owns_its_memory(sizes: Sizes) -> None:
    shape = (4, 8)
    reshards = Reshards(sizes, shape)
    for source, target in (("R,R", "S0,R"), ("R,R", "P,R"), ("P,R", "S1,S0")):
        x = torch.ones(block(torch.ones(shape), source, sizes, reshards.rank).shape)
        y = ops.reshard(x, *reshards.encode(source, target))
        assert y.untyped_storage()._cdata != x.untyped_storage()._cdata, (source, target)
        assert y.untyped_storage().nbytes() == y.numel() * 4, (source, target)


def test_results_do_not_hold_larger_tensors():
    run_ranks(4, f"{HERE}:check_result_owns_its_memory", (2, 2))


def test_meta_kernel_gives_the_local_shape():
    # gather dim 1 by 2; all-to-all dim 0 -> 2 by 4; reduce-scatter dim 1 by 2
    steps = [0, 1, -1, 0, 2, 0, 3, 0, 2, 1, 4, 3, 1, 1, -1, 0, 2, 1, 4, 1, -1, -1, 3, 2]
    x = torch.empty(2, 3, 8, device="meta", requires_grad=True)
    y = torch.ops.tensoropt.reshard(x, steps, ["a", "b"], [], [])
    assert y.shape == (8, 1, 2)
    assert y.requires_grad
    assert torch.ops.tensoropt.reshard(x, [], [], steps, ["a", "b"]).shape == x.shape


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([0, 1], "6 integers"),
        ([6, 0, -1, 0, 2, 0], "kind 6"),
        ([8, 0, -1, 0, 2, 0], "those that an uneven one counts"),
        ([8, 0, -1, 0, 2, 0, 2, 8, 3], "got 1 where 2 are due"),
        ([8, 0, -1, 0, 2, 0, 4, 8, 3, 1, 1], "1 integers too many"),
        ([8, 0, -1, 0, 2, 0, 3, 8, 3, 1], "local size 4, which has to be 3"),
        ([12, 0, -1, -1, 2, 0, 3, 8, 3, 2], "local size 4, which has to be 5"),
        ([10, 0, -1, 0, 2, 0, 1, 8], "has dims 0"),
        ([0, 0, -1, 1, 2, 0], "group 1 of 1"),
        ([0, 0, -1, 0, 2, 2], "index 2"),
        ([4, 0, -1, -1, 3, 0], "local size 4"),
        ([4, 2, -1, -1, 2, 0], "dim 2 of a tensor with 2 dims"),
    ],
)
def test_malformed_programs_are_refused(steps: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        ops.reshard(torch.zeros(4, 4), steps, ["g"])
