"""Experts on several ranks, tokens sent to them, against one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
import torch.distributed as dist

# Registers transformers::grouped_mm_fallback.
import transformers.integrations.moe  # noqa: F401
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.memory import models as memory_models
from benchmarks.memory.job import random_plan
from tensoropt_torch import _C
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.rules.call import RankCall
from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.meshes import partition
from tensoropt_torch.space.search_space import make_space
from tests import operators
from tests.distributed.harness import run_ranks
from tests.distributed.models import make
from tests.distributed.parity import TOLERANCE, differences, train, train_alone
from tests.rules.references import routed_experts_shard

HERE = "tests.distributed.rules.test_routed_experts"
TOKENS, WIDTH, INNER, CHOSEN = 6, 5, 4, 2
TARGET = "tensoropt.routed_experts.default"


# --- the operator ------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """What each mesh axis does: exchange rows (``te``), split experts (``e``) or the
    inner dim (``f``), or nothing but other tokens (``t``)."""

    uses: tuple[str, ...]
    routing: str
    gated: bool
    transposed: bool = False
    num_experts: int = 4

    @property
    def sizes(self) -> tuple[int, ...]:
        return (2,) * len(self.uses)

    def axes(self, *uses: str) -> int:
        """The axes that do one of these."""
        return sum(1 << axis for axis, use in enumerate(self.uses) if use in uses)

    def index(self, axes: int, rank: int) -> tuple[int, int]:
        """The position of a rank along these axes, and how many there are."""
        index, count = 0, 1
        for axis in range(len(self.uses)):
            if axes >> axis & 1:
                coordinate = rank >> (len(self.uses) - 1 - axis) & 1
                index, count = 2 * index + coordinate, 2 * count
        return index, count

    def group(self, axes: int, rank: int) -> list[int]:
        return next(group for group in partition(self.sizes, axes) if rank in group)

    def call(self, rank: int) -> RankCall:
        """The call of a rank; ranks that have the same tokens or matrices draw them
        from the same seed."""
        tokens, _ = self.index(self.axes("t", "te"), rank)
        first, holders = self.index(self.axes("e", "te"), rank)
        own = self.num_experts // holders
        part, parts = self.index(self.axes("f"), rank)
        random = torch.Generator().manual_seed(100 + tokens)
        x = torch.randn(TOKENS, WIDTH, generator=random, dtype=torch.float64)
        weights = torch.rand(TOKENS, CHOSEN, generator=random, dtype=torch.float64)
        experts = self.experts(random)
        random.manual_seed(1)
        columns = (2 if self.gated else 1) * INNER
        up = torch.randn(self.num_experts, WIDTH, columns, generator=random, dtype=torch.float64)
        down = torch.randn(self.num_experts, INNER, WIDTH, generator=random, dtype=torch.float64)
        mine = slice(own * first, own * first + own)
        shards = [up[mine].chunk(parts, 2)[part], down[mine].chunk(parts, 1)[part]]
        if self.transposed:
            shards = [shard.mT.contiguous() for shard in shards]
        operands = [x, experts, weights, *(shard.clone() for shard in shards)]
        for operand in (*operands[:1], *operands[2:]):
            operand.requires_grad_()
        exchange = self.axes("te")
        firsts = [
            own * self.index(self.axes("e", "te"), peer)[0] for peer in self.group(exchange, rank)
        ]
        product = "transformers::grouped_mm_fallback"
        extra = [product, "silu", self.gated, self.transposed, self.num_experts, firsts]
        groups = [self.group(a, rank) if a else [] for a in (exchange, self.axes("f"))]
        return RankCall(operands, extra, groups)

    def experts(self, random: torch.Generator) -> torch.Tensor:
        """``skewed``: one of the first two, the others get nothing."""
        shape = (TOKENS, CHOSEN)
        if self.routing == "one":
            return torch.full(shape, self.num_experts - 1)
        high = 2 if self.routing == "skewed" else self.num_experts
        return torch.randint(high, shape, generator=random)


def check_layer(layer: Layer) -> ops.CollectiveCounts:
    """This rank's result and gradients; gradients of tokens are sums over the units."""
    rank = dist.get_rank()
    groups = AxisGroups(layer.sizes)
    exchange, units = layer.axes("te"), layer.axes("f")
    groups.create([exchange, units])
    calls = [layer.call(other) for other in range(dist.get_world_size())]
    expected = routed_experts_shard(calls)
    given = [torch.cos(torch.arange(r.numel()).view_as(r) + i) for i, r in enumerate(expected)]
    names = [groups.name(axes) if axes else "" for axes in (exchange, units)]
    x, experts, weights, up, down = layer.call(rank).operands
    own = [x, weights, up, down]
    *called, num_experts, firsts = calls[rank].extra
    ops.reset_collective_counts()
    got = operators.routed_experts_shard(
        x,
        (experts, weights),
        (up, down),
        operators.ExpertCalls(*called),
        operators.ExpertHolders(num_experts, tuple(firsts), *names),
    )
    found = list(torch.autograd.grad(got, own, given[rank]))
    counts = ops.collective_counts()
    torch.testing.assert_close(got, expected[rank])
    leaves = [tensor for call in calls for tensor in (*call.operands[:1], *call.operands[2:])]
    wanted = torch.autograd.grad(expected, leaves, given)
    if units:
        dist.all_reduce(found[0], group=groups.group(units))
    sharers = layer.group(units, rank)
    tokens = torch.stack([wanted[4 * other] for other in sharers]).sum(0)
    torch.testing.assert_close(found, [tokens, *wanted[4 * rank + 1 : 4 * rank + 4]])
    return counts


def check_layers(layers: list[Layer]) -> list[ops.CollectiveCounts]:
    counts = []
    for layer in layers:
        try:
            counts.append(check_layer(layer))
        except AssertionError as error:
            raise AssertionError(f"{layer}: {error}") from error
    return counts


SPLITS = {
    2: [("te",), ("e",), ("f",)],
    4: [("te", "te"), ("te", "e"), ("e", "te"), ("t", "te"), ("te", "f"), ("f", "e"), ("f", "f")],
}


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_gets_its_part(size: int) -> None:
    """Results, gradients and the collectives that are run."""
    layers = [
        Layer(uses, routing, gated, transposed)
        for uses in SPLITS[size]
        for routing in ("random", "skewed", "one")
        for gated, transposed in ((False, False), (True, False), (True, True))
    ]
    for counts in run_ranks(size, f"{HERE}:check_layers", layers, 120):
        for layer, found in zip(layers, counts, strict=True):
            # counts of rows, rows there and back, their gradients; halves of columns
            exchanges = 5 if "te" in layer.uses else 0
            gates = 2 if "f" in layer.uses and layer.gated else 0
            assert found.all_to_all == found.collectives == exchanges + gates, layer


def test_without_numbers_every_expert_gets_as_many_rows() -> None:
    """What a rank is told of a balanced routing, on tensors without memory."""
    ends = torch.tensor([3, 6, 9, 12], dtype=torch.int32)
    count = torch.ops.tensoropt._routed_counts
    expected = count(ends, [2], 2, 12, "")
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(ends)
        assert count(fake, [2], 2, 12, "") == expected == [6, 6, 3, 3]
        # two peers: where their rows begin, how many there are, how many come from each
        assert count(fake, [0, 2], 2, 12, "no group") == [0, 6, 6, 6, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("chosen", "gated", "holders", "error", "words"),
    [
        ([0, 4], False, operators.ExpertHolders(4), IndexError, "choices from 0 to 4 of 4 experts"),
        ([0, 1], False, operators.ExpertHolders(4, (0, 3)), ValueError, r"each of \[0, 3\] on"),
        ([0, 1], True, operators.ExpertHolders(2), ValueError, r"up has to be \[e, d, 2 f\]"),
        ([0], False, operators.ExpertHolders(2), ValueError, r"weights \[n, k\], got"),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    chosen: list[int],
    gated: bool,
    holders: operators.ExpertHolders,
    error: type[Exception],
    words: str,
) -> None:
    routing = torch.tensor([chosen]), torch.zeros(1, 2)
    matrices = torch.zeros(2, 3, 4), torch.zeros(2, 4, 3)
    calls = operators.ExpertCalls("aten::_grouped_mm", "relu", gated)
    with pytest.raises(error, match=words):
        operators.routed_experts_shard(torch.zeros(1, 3), routing, matrices, calls, holders)


# --- strategies --------------------------------------------------------------


def forced(space: _C.SearchSpace, uses: str) -> list[list[bool]]:
    """All configs of all nodes, but of experts those with these uses only."""
    masks = []
    for row in space.nodes():
        labels = [label.split("/")[0].split(" ")[0] for label in row.configs]
        mask = [row.target != TARGET or label == uses for label in labels]
        assert any(mask), f"{uses} is none of {labels}"
        masks.append(mask)
    return masks


def plans(captured: CapturedModel, uses: str) -> Iterator[Plan]:
    """The ends of the frontier on which experts are split so."""
    task = PlanningTask(captured, load_cluster("cpu"), space="full")
    settings = task.settings(dist.get_world_size())
    space = make_space(captured, settings)
    result = SearchSettings(epsilon=0.05).run(space, allowed=forced(space, uses))
    for point in sorted({0, len(result.points) - 1}):
        yield Plan.of(space, settings, captured, result.unroll(point))


def check_strategies(all_uses: list[str]) -> list[str]:
    case = make("routed_experts", torch.float64)
    tolerance = TOLERANCE[torch.float64]
    expected = train_alone(case.model, lambda m: replace(case, model=m).loss(), tolerance)
    captured = capture(case.model, case.args, **case.keywords)
    sizes, device = (2,) * (dist.get_world_size().bit_length() - 1), torch.device("cpu")
    context = RankContext.make(sizes, device)
    wrong: list[str] = []
    for uses in all_uses:
        for plan in plans(captured, uses):
            ops.reset_collective_counts()
            module = parallelize(case.model, captured, plan, device, context)
            got = train(module, lambda module=module: module(*case.args))
            found = differences(got, expected, TOLERANCE[torch.float64])
            wrong += [f"{uses}: {text}" for text in found]
            assert ops.collective_counts().all_to_all > 0 or "te" not in uses
    return wrong


@pytest.mark.parametrize("size", [2, 4])
def test_strategies_equal_one_process(size: int) -> None:
    """Loss, gradients and parameters of three steps; one expert is never chosen, so
    that with four ranks one of them gets no rows."""
    all_uses = [",".join(uses) for uses in SPLITS[size]]
    for wrong in run_ranks(size, f"{HERE}:check_strategies", all_uses, 300):
        assert not wrong


def check_one_expert(seeds: list[int]) -> list[str]:
    """Strategies under which tensors are made again in backward, by all ranks."""
    model, args = memory_models.make("experts")
    model.get_buffer("chosen").fill_(1)
    expected = train_alone(model, lambda m: m(*args), TOLERANCE[torch.float32])
    captured = capture(model, args)
    context = RankContext.make((2, 2), torch.device("cpu"))
    wrong: list[str] = []
    for seed in seeds:
        plan = random_plan(captured, 4, seed)
        module = parallelize(model, captured, plan, context.device, context)
        got = train(module, lambda module=module: module(*args))
        found = differences(got, expected, TOLERANCE[torch.float32])
        wrong += [f"seed {seed}: {text}" for text in found]
    return wrong


def test_ranks_without_rows_take_part_in_backward() -> None:
    for wrong in run_ranks(4, f"{HERE}:check_one_expert", [0, 2, 4, 7, 8, 16], 120):
        assert not wrong
