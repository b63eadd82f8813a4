"""How far two results of one computation may be apart by rounding alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import fx
from torch.utils import _pytree as pytree

# Of a tensor: what the other order of a sum, or another kernel, may make of it.
HALF_DTYPES_EPS = 1e-4  # dtypes that are coarser have too few digits to give half of them away
UNITS_OF_HALF_DTYPES = 2


def rounding_of(graph: fx.Graph) -> float:
    """The step between numbers next to 1 in the coarsest floating dtype of a graph."""
    values = (leaf for node in graph.nodes for leaf in pytree.tree_leaves(node.meta.get("val")))
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    floating = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    return max((torch.finfo(dtype).eps for dtype in floating), default=0.0)


def tolerance_of(eps: float) -> float:
    """The relative error that needs no second look: half of the digits, of half-precision
    dtypes two units in the last place."""
    return eps**0.5 if eps < HALF_DTYPES_EPS else UNITS_OF_HALF_DTYPES * eps


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of the largest element to the largest, or in the norm, whichever is more. What is
    infinite or no number has to be so in both."""
    if torch.equal(got, wanted):
        return 0.0
    a, b = _wide(got), _wide(wanted)
    usual = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), usual):
        return float("inf")
    a, b = a[usual], b[usual]
    error = (a - b).abs()
    if not error.any():
        return 0.0
    largest, norm = float(b.abs().max()), float(b.norm())
    if largest == 0.0:
        return float("inf")
    return max(float(error.max()) / largest, float(error.norm()) / norm)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """As numbers that are subtracted without further rounding."""
    tensor = tensor.detach()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


@contextmanager
def nudged(tensors: Sequence[torch.Tensor], by: float, seed: int) -> Iterator[None]:
    """Inside, every element of floating tensors is larger or smaller by this part of itself."""
    floating = [t for t in tensors if t.is_floating_point() or t.is_complex()]
    before = [tensor.detach().clone() for tensor in floating]
    with torch.no_grad():
        try:
            for number, tensor in enumerate(floating):
                tensor.copy_(tensor * (1 + by * _signs(tensor, seed + number)))
            yield
        finally:
            for tensor, value in zip(floating, before, strict=True):
                tensor.copy_(value)


def _signs(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """+1 and -1 by chance."""
    generator = torch.Generator(tensor.device).manual_seed(seed)
    dtype = torch.float32 if tensor.itemsize < 4 else tensor.real.dtype
    drawn = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=dtype)
    return drawn.sub_(0.5).sign_()
