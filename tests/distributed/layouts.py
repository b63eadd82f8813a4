"""Layouts from their meaning: which part of a tensor a rank holds.

Independent of the C++ core, so that it can judge the core. A layout is a string
such as ``"S0,R,P"``; ``sizes`` are the mesh axes, outermost first.
"""

from __future__ import annotations

import itertools
import math

import torch


def coordinates(sizes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    result = []
    for size in reversed(sizes):
        result.append(rank % size)
        rank //= size
    return tuple(reversed(result))


def all_layouts(
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
    uneven: bool = False,
    units: tuple[int, ...] = (),
) -> list[str]:
    """All layouts that divide the shape; or all that leave something on every rank."""
    placements = ["R", "P", *(f"S{dim}" for dim in range(len(shape)))]
    layouts = []
    for choice in itertools.product(placements, repeat=len(sizes)):
        if uneven:
            layout = ",".join(choice)
            whole = torch.empty(shape, device="meta")
            ranks = range(math.prod(sizes))
            if all(block(whole, layout, sizes, rank, units).numel() for rank in ranks):
                layouts.append(layout)
            continue
        pieces = [1] * len(shape)
        for placement, size in zip(choice, sizes, strict=True):
            if placement[0] == "S":
                pieces[int(placement[1:])] *= size
        if all(n % p == 0 for n, p in zip(shape, pieces, strict=True)):
            layouts.append(",".join(choice))
    return layouts


def axes_with(layout: str, placement: str) -> int:
    """The axis set that has this placement."""
    return sum(1 << axis for axis, p in enumerate(layout.split(",")) if p == placement)


def block(
    whole: torch.Tensor,
    layout: str,
    sizes: tuple[int, ...],
    rank: int,
    units: tuple[int, ...] = (),
) -> torch.Tensor:
    """What a rank holds of a tensor, without pending sums. ``units``: so many neighbouring
    entries of each dim stay together."""
    for size, placement, at in zip(sizes, layout.split(","), coordinates(sizes, rank), strict=True):
        if placement[0] == "S":  # outer axes cut first: they are more significant
            dim = int(placement[1:])
            unit = units[dim] if units else 1
            chunks = whole.unflatten(dim, (-1, unit)).chunk(size, dim)
            empty = whole.narrow(dim, 0, 0)
            whole = chunks[at].flatten(dim, dim + 1) if at < len(chunks) else empty
    return whole.clone()


def share_index(layout: str, sizes: tuple[int, ...], rank: int) -> tuple[int, int]:
    """Which summand of a pending sum a rank holds, and of how many."""
    index, count = 0, 1
    for size, placement, at in zip(sizes, layout.split(","), coordinates(sizes, rank), strict=True):
        if placement == "P":
            index = index * size + at
            count *= size
    return index, count


def local_part(
    whole: torch.Tensor,
    layout: str,
    sizes: tuple[int, ...],
    rank: int,
    seed: int = 0,
    units: tuple[int, ...] = (),
) -> torch.Tensor:
    """What a rank holds; summands of pending sums are random small integers."""
    index, count = share_index(layout, sizes, rank)
    generator = torch.Generator().manual_seed(seed)
    others = [
        torch.randint(-9, 10, whole.shape, generator=generator).to(whole.dtype)
        for _ in range(count - 1)
    ]
    shares = [whole - sum(others), *others]
    return block(shares[index], layout, sizes, rank, units)


def gradient_layouts(layout: str) -> list[str]:
    """The layouts of gradients with the local shape of a value."""
    choices = [[p] if p[0] == "S" else ["R", "P"] for p in layout.split(",")]
    return [",".join(choice) for choice in itertools.product(*choices)]


def num_ranks(sizes: tuple[int, ...]) -> int:
    return math.prod(sizes)
