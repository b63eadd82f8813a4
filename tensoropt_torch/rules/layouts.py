"""Layouts taken at their word: how a whole tensor becomes one part per rank,
and how the parts become the tensor again. Written without the C++ core, which
it is there to judge.

Parts are in rank order, the first mesh axis most significant.
"""

import itertools
import math
from collections.abc import Sequence

import torch

from tensoropt_torch.rules.call import REPLICA_TOLERANCES

Sizes = Sequence[int]


def placements(layout: str) -> list[str]:
    """``"S0,R"`` -> ``["S0", "R"]``."""
    return layout.split(",") if layout else []


def split(
    tensor: torch.Tensor,
    layout: str,
    sizes: Sizes,
    random: torch.Generator,
    units: Sequence[int] = (),
) -> list[torch.Tensor]:
    """The part of each rank: Shard slices between ``units`` of the dims (by default single
    entries), Replicate copies, Partial draws random parts that sum to the whole."""
    units = units or [1] * tensor.dim()
    parts = _split(tensor, placements(layout), list(sizes), random, units)
    return [part.clone() for part in parts]


def _split(
    tensor: torch.Tensor,
    places: list[str],
    sizes: list[int],
    random: torch.Generator,
    units: Sequence[int],
) -> list[torch.Tensor]:
    if not sizes:
        return [tensor]
    if places[0] == "R":  # the same parts, also of what is random
        return _split(tensor, places[1:], sizes[1:], random, units) * sizes[0]
    pieces = _pieces(tensor, places[0], sizes[0], random, units)
    return [p for piece in pieces for p in _split(piece, places[1:], sizes[1:], random, units)]


def _pieces(
    tensor: torch.Tensor, placement: str, size: int, random: torch.Generator, units: Sequence[int]
) -> list[torch.Tensor]:
    if placement == "P":
        return _summands(tensor, size, random)
    dim = int(placement[1:])
    return list(torch.tensor_split(tensor, _ends(tensor.shape[dim], size, units[dim]), dim))


def _ends(length: int, count: int, unit: int) -> list[int]:
    """Where parts end, but the last: each is as long as the first, as far as there is
    something left, and has whole units."""
    first = math.ceil(length / unit / count) * unit
    return [min(first * (i + 1), length) for i in range(count - 1)]


def _summands(tensor: torch.Tensor, count: int, random: torch.Generator) -> list[torch.Tensor]:
    assert tensor.dtype != torch.bool, "a bool cannot be a pending sum"
    shape = (count - 1, *tensor.shape)
    if tensor.is_floating_point() or tensor.is_complex():
        some = torch.randn(shape, generator=random, dtype=tensor.dtype)
    else:
        some = torch.randint(-9, 9, shape, generator=random, dtype=tensor.dtype)
    return [*some, tensor - some.sum(0, dtype=tensor.dtype)]


def combine(
    parts: Sequence[torch.Tensor],
    layout: str,
    sizes: Sizes,
    tolerance: float = REPLICA_TOLERANCES[torch.float64],
    units: Sequence[int] = (),
) -> torch.Tensor:
    """The whole tensor. Raises AssertionError if the parts contradict the
    layout: replicas that differ by more than ``tolerance``, shards that do not fit."""
    units = units or [1] * parts[0].dim()
    return _combine(list(parts), placements(layout), list(sizes), tolerance, units)


def _combine(
    parts: list[torch.Tensor],
    places: list[str],
    sizes: list[int],
    tolerance: float,
    units: Sequence[int],
) -> torch.Tensor:
    if not sizes:
        (part,) = parts
        return part
    block = len(parts) // sizes[0]
    blocks = [
        _combine(parts[i : i + block], places[1:], sizes[1:], tolerance, units)
        for i in range(0, len(parts), block)
    ]
    if places[0] == "R":
        return _the_same(blocks, tolerance)
    if places[0] == "P":
        assert all(b.shape == blocks[0].shape for b in blocks), "parts differ in shape"
        return torch.stack(blocks).sum(0, dtype=blocks[0].dtype)
    dim = int(places[0][1:])
    lengths = [b.shape[dim] for b in blocks]
    whole = torch.cat(blocks, dim)
    ends = [*_ends(sum(lengths), len(blocks), units[dim]), sum(lengths)]
    assert list(itertools.accumulate(lengths)) == ends, f"parts of lengths {lengths}"
    return whole


def _the_same(copies: list[torch.Tensor], tolerance: float) -> torch.Tensor:
    for copy in copies[1:]:
        torch.testing.assert_close(
            copy,
            copies[0],
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text: f"replicas differ: {text}",
        )
    return copies[0]
