"""What PyTorch's compiler traces of reshards and losses is what the operators give."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.distributed as dist

from tensoropt_torch.runtime import functional, ops
from tensoropt_torch.runtime.functional_losses import cross_entropy_vocab
from tensoropt_torch.runtime.groups import AxisGroups
from tests.distributed.harness import run_ranks
from tests.distributed.layouts import all_layouts, local_part
from tests.distributed.runtime.test_reshard import Reshards, Sizes

HERE = "tests.distributed.runtime.test_functional"
Shape = tuple[int, ...]
RESHARDS = 60


def differing_reshards(payload: tuple[Sizes, Shape, int]) -> list[str]:
    """Of random pairs of layouts, there and back, of values and of gradients."""
    sizes, shape, seed = payload
    reshards = Reshards(sizes, shape, uneven=True)
    layouts = all_layouts(sizes, shape, uneven=True)
    pairs = list(itertools.product(layouts, layouts))
    whole = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    wrong = []
    for source, target in random.Random(seed).sample(pairs, min(RESHARDS, len(pairs))):
        local = local_part(whole, source, sizes, dist.get_rank()).clone()
        if "P" in target:
            continue
        programs = *reshards.encode(source, target), *reshards.encode(target, source)
        found = []
        for call in (ops.reshard, functional.reshard):
            x = local.clone().requires_grad_()
            y = call(x, *programs)
            y.backward(torch.arange(float(y.numel())).view(y.shape))
            found.append((y.detach(), x.grad))
        if not all(torch.equal(a, b) for a, b in zip(*found, strict=True)):
            wrong.append(reshards.describe(source, target))
    return wrong


@pytest.mark.parametrize(
    ("sizes", "shape"), [((2,), (5, 7, 3)), ((2, 2), (7, 5)), ((2, 2), (8, 4, 4))]
)
def test_reshards(sizes: Sizes, shape: Shape) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    ranks = torch.Size(sizes).numel()
    for wrong in run_ranks(ranks, f"{HERE}:differing_reshards", (sizes, shape, seed)):
        assert not wrong, "\n".join(wrong[:5])


def differing_losses(seed: int) -> list[str]:
    """Classes are split over axis 1, positions over axis 0."""
    groups = AxisGroups((2, 2))
    groups.create([0b01, 0b10])
    column = dist.get_rank() % 2
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    wrong = []
    cases = itertools.product(
        (torch.float64, torch.float32, torch.bfloat16),
        (ops.MEAN, ops.SUM),
        (0.0, 0.1),
        ((6,), (3, 4)),
        ("", groups.name(0b01)),
    )
    for dtype, reduction, smoothing, rows, count_group in cases:
        shape = (rows[0], 5, *rows[1:])
        logits = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        # Equal for the ranks that have the classes of the same positions.
        target = torch.randint(0, 10, rows, generator=torch.Generator().manual_seed(seed))
        target.flatten()[0] = -100
        given = reduction, -100, smoothing, 10, 5 * column, groups.name(0b10), count_group
        found = []
        for call in (torch.ops.tensoropt.cross_entropy_vocab.default, cross_entropy_vocab):
            x = logits.clone().requires_grad_()
            loss = call(x, target, *given)
            (3 * loss).backward()
            found.append((loss.detach(), x.grad))
        for ours, theirs in zip(*found, strict=True):
            if ours.dtype != theirs.dtype or not torch.allclose(ours, theirs, rtol=1e-6):
                wrong.append(f"{dtype}, {reduction}, {smoothing}, {rows}, {count_group}")
    return wrong


def test_losses_of_split_classes() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for wrong in run_ranks(4, f"{HERE}:differing_losses", seed):
        assert not wrong, "\n".join(wrong[:5])
