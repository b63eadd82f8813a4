"""Products by labels, and distances."""

from collections.abc import Iterator

import torch

# Registers transformers::grouped_mm_fallback.
import transformers.integrations.moe  # noqa: F401

from tests.rules.case import Case, Random, integers, real

# Sums of 96 products, in parts.
BFLOAT16_TOLERANCE = 0.2

EQUATIONS = {
    "bmk,bkn->bmn": ((6, 12, 4), (6, 4, 2)),
    "mk,nk->mn": ((12, 4), (6, 4)),
    "mk,kn": ((12, 4), (4, 6)),
    "...k,nk->...n": ((2, 12, 4), (6, 4)),
    "b...k,kn->b...n": ((12, 2, 4), (4, 6)),
    "...ij,...jk": ((12, 2, 4), (6, 1, 4, 2)),
    "ij->ji": ((12, 4),),
    "ij->": ((12, 4),),
    "ij->i": ((12, 4),),
    "ij": ((12, 4),),
    "ba": ((12, 4),),
    "ii->i": ((12, 12),),
    "bii->b": ((12, 4, 4),),
    "i,j->ij": ((12,), (4,)),
    "gtec,gtd->gecd": ((2, 6, 12, 4), (2, 6, 2)),
    "ij,jk,kl->il": ((12, 4), (4, 6), (6, 2)),
    "i,ij,j": ((12,), (12, 4), (4,)),
    " b m , m n -> b n ": ((12, 4), (4, 6)),
}


def einsum_cases() -> Iterator[Case]:
    for equation, shapes in EQUATIONS.items():
        tensors = [real(*shape) for shape in shapes]
        yield Case("aten.einsum.default", (equation, tensors), name=equation)
    one = [real(12, 1), real(12, 4)]
    yield Case("aten.einsum.default", ("ij,ij->ij", one), name="broadcast")


def labelled_cases() -> Iterator[Case]:
    for target in ("outer", "ger"):
        yield Case(f"aten.{target}.default", (real(12), real(4)))
    for target in ("dot", "vdot"):
        yield Case(f"aten.{target}.default", (real(12), real(12)))
    yield Case("aten.mv.default", (real(12, 4), real(4)))
    dot = "aten.tensordot.default"
    yield Case(dot, (real(12, 4, 6), real(6, 4, 2), [1, -1], [1, 0]))
    yield Case(dot, (real(12, 4), real(6), [], []), name="outer")
    for left, right in (((12, 4), (6, 4)), ((4,), (12, 4)), ((12, 4), ()), ((2, 12, 4), (4,))):
        name = f"{len(left)}-D, {len(right)}-D"
        yield Case("aten.inner.default", (real(*left), real(*right)), name=name)


def more_product_cases() -> Iterator[Case]:
    for shape in ((12, 6), (6,), (12, 1), ()):
        bias, name = real(*shape), "x".join(map(str, shape)) or "scalar"
        scales = {"beta": 0.5, "alpha": 2.0}
        batches = (bias, real(2, 12, 4), real(2, 4, 6))
        yield Case("aten.addbmm.default", batches, scales, name)
        yield Case("aten.addr.default", (bias, real(12), real(6)), scales, name)
    for shape in ((12,), (1,), ()):
        name = "x".join(map(str, shape)) or "scalar"
        yield Case("aten.addmv.default", (real(*shape), real(12, 4), real(4)), name=name)
    pair = (real(12, 2, 4), real(12, 2, 6))
    for bias in (None, real(12)):
        args = (*pair, real(12, 4, 6), bias)
        yield Case("aten.bilinear.default", args, name="bias" if bias else "")


def block_cases() -> Iterator[Case]:
    """Six outputs a block, of weights as they are and transposed."""
    target = "tensoropt.linear_blocks.default"
    x, bias = real(2, 12, 4), real(3, 6)
    yield Case(target, (x, real(3, 6, 4)), name="no bias")
    yield Case(target, (x, real(3, 6, 4), bias), name="bias")
    yield Case(target, (x, real(4, 3, 6), bias, True), name="transposed")
    yield Case(target, (real(12, 4), real(2, 6, 4), real(2, 6)), name="rows")


def transposed_cases() -> Iterator[Case]:
    target = "tensoropt.linear_transposed.default"
    for x, name in ((real(2, 12, 4), "batch"), (real(12, 4), "rows"), (real(4), "one row")):
        yield Case(target, (x, real(4, 6)), name=f"{name}, no bias")
        yield Case(target, (x, real(4, 6), real(6)), name=f"{name}, bias")


def section_cases() -> Iterator[Case]:
    """Four, two and two outputs for each of six groups."""
    target = "tensoropt.linear_sections.default"
    x, weight, bias = real(2, 12, 4), real(48, 4), real(48)
    cuts = [0, 24, 36], [24, 12, 12]
    yield Case(target, (x, weight, None, *cuts), name="no bias")
    yield Case(target, (x, weight, bias, *cuts), name="bias")
    yield Case(target, (real(12, 4), weight, bias, *cuts), name="rows")


def grouped_cases() -> Iterator[Case]:
    ends = torch.tensor([5, 5, 8, 12], dtype=torch.int32)
    args = (real(12, 4), real(4, 4, 6), ends)
    yield Case("transformers.grouped_mm_fallback.default", args)
    thirds = torch.tensor([0, 3, 3, 7, 11, 12])
    args = (real(12, 4), real(6, 4, 2), thirds)
    yield Case("transformers.grouped_mm_fallback.default", args, name="six groups")
    half = (Random(shape, -1, 1, torch.bfloat16, True) for shape in ((12, 96), (4, 96, 48)))
    yield Case("aten._grouped_mm.default", (*half, ends), tolerance=BFLOAT16_TOLERANCE)


def routed_cases() -> Iterator[Case]:
    """``skewed`` chooses the first two experts only."""
    target, loops = "tensoropt.routed_experts.default", "transformers::grouped_mm_fallback"
    tokens = (real(12, 4), integers(12, 12, 2), real(12, 2))
    gated = (loops, "silu", True)
    yield Case(target, (*tokens, real(12, 4, 24), real(12, 12, 4), *gated, False), name="gated")
    turned = (real(12, 24, 4), real(12, 4, 12), *gated, True)
    yield Case(target, (*tokens, *turned), name="gated, transposed")
    skewed = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]]).repeat(3, 1)
    plain = (real(4, 4, 6), real(4, 6, 4), loops, "gelu", False, False)
    yield Case(target, (real(12, 4), skewed, real(12, 2), *plain), name="skewed")
    x, weights, up, down = (
        Random(shape, -0.5, 0.5, torch.bfloat16, True)
        for shape in ((12, 16), (12, 2), (4, 16, 96), (4, 48, 16))
    )
    half = (up, down, "aten::_grouped_mm", "gelu_tanh", True, False)
    args = (x, integers(4, 12, 2), weights, *half)
    yield Case(target, args, name="bfloat16", tolerance=BFLOAT16_TOLERANCE)


def distance_cases() -> Iterator[Case]:
    for dim in (0, 1, -1):
        pair = (real(12, 4, 6), real(12, 4, 6))
        yield Case("aten.cosine_similarity.default", (*pair, dim), name=f"{dim}")
    broadcast = (real(12, 1, 6), real(4, 6))
    yield Case("aten.cosine_similarity.default", (*broadcast, -1), name="broadcast")
    for keep in (False, True):
        options = {"keepdim": keep}
        yield Case("aten.pairwise_distance.default", (*pair,), options, f"keepdim {keep}")
        yield Case("aten.pairwise_distance.default", (*broadcast,), options, f"broadcast {keep}")
    cdist = "aten.cdist.default"
    yield Case(cdist, (real(2, 12, 4), real(2, 6, 4)))
    yield Case(cdist, (real(12, 4), real(6, 4), 1.0), name="matrices")
    yield Case(cdist, (real(4, 1, 12, 4), real(2, 6, 4)), name="broadcast")


def product_cases() -> Iterator[Case]:
    yield from einsum_cases()
    yield from labelled_cases()
    yield from more_product_cases()
    yield from block_cases()
    yield from transposed_cases()
    yield from section_cases()
    yield from grouped_cases()
    yield from routed_cases()
    yield from distance_cases()
