"""Operators of a part of the work that need no other rank, against the whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from tests import operators

MODES = ("sum", "mean", "max")
OFFSETS = torch.tensor([0, 2, 2, 6, 9, 11])
NUM_INDICES = 13
TOLERANCE = 1e-12


def gradients(
    loss: torch.Tensor, tensors: list[torch.Tensor], incoming: torch.Tensor
) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, tensors, incoming))


def normal(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return tensor.requires_grad_()


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


# --- bags --------------------------------------------------------------------


def indices() -> torch.Tensor:
    return torch.randint(0, 8, (NUM_INDICES,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("last", [False, True])
def test_bags_of_all_ranks_are_the_bags(mode: str, padding: int | None, last: bool):
    weight, index = normal(8, 5, seed=1), indices()
    offsets = torch.cat([OFFSETS, torch.tensor([NUM_INDICES])]) if last else OFFSETS
    expected = F.embedding_bag(
        index, weight, offsets, mode=mode, include_last_offset=last, padding_idx=padding
    )
    options = (-1, None, MODES.index(mode), last, -1 if padding is None else padding)
    parts = [
        operators.embedding_bag_shard(weight, index, offsets, (first, 2), *options)
        for first in (0, 2, 4)
    ]
    close(torch.cat(parts), expected)
    incoming = normal(6, 5, seed=2).detach()
    (whole,) = gradients(expected, [weight], incoming)
    found = [
        gradients(part, [weight], rows)[0]
        for part, rows in zip(parts, incoming.chunk(3), strict=True)
    ]
    close(torch.stack(found).sum(0), whole)


@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
def test_rows_of_all_ranks_sum_to_the_bags(mode: str):
    weight, index = normal(8, 5, seed=1), indices()
    factors = normal(NUM_INDICES, seed=3) if mode == "weighted" else None
    name = "mean" if mode == "mean" else "sum"
    expected = F.embedding_bag(index, weight, OFFSETS, mode=name, per_sample_weights=factors)
    tables = [rows.detach().clone().requires_grad_() for rows in weight.chunk(2)]
    parts = [
        operators.embedding_bag_shard(
            table, index, OFFSETS, (0, 6), 4 * i, factors, MODES.index(name)
        )
        for i, table in enumerate(tables)
    ]
    close(parts[0] + parts[1], expected)
    incoming = normal(6, 5, seed=2).detach()
    used = [] if factors is None else [factors]
    whole = gradients(expected, [weight, *used], incoming)
    found = [
        gradients(part, [table, *used], incoming) for part, table in zip(parts, tables, strict=True)
    ]
    close(torch.cat([gradient[0] for gradient in found]), whole[0])
    if used:
        close(found[0][1] + found[1][1], whole[1])


def test_a_maximum_of_split_rows_is_refused():
    with pytest.raises(ValueError, match="needs mode 0"):
        operators.embedding_bag_shard(
            normal(4, 2, seed=0), indices() % 4, OFFSETS, (0, 6), 4, None, 2
        )


# --- products of groups ------------------------------------------------------

ENDS = (
    torch.tensor([3, 3, 7, 10], dtype=torch.int32),
    torch.tensor([0, 0, 0, 12]),
    torch.tensor([12, 12, 12, 12]),
    torch.tensor([0, 0, 0, 0]),
)


def grouped_product(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Row by row; zeros after the last group."""
    group = torch.bucketize(torch.arange(len(x)), ends, right=True)
    padded = torch.cat([weight, torch.zeros_like(weight[:1])])
    return torch.einsum("tk,tkn->tn", x, padded[group])


@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_products_of_all_ranks_sum_to_the_product(ends: torch.Tensor, parts: int):
    x, weight = normal(12, 5, seed=1), normal(4, 5, 3, seed=2)
    expected = grouped_product(x, weight, ends)
    incoming = normal(12, 3, seed=3).detach()
    whole = gradients(expected, [x, weight], incoming)
    shards = [part.detach().clone().requires_grad_() for part in weight.chunk(parts)]
    results = [
        operators.grouped_mm_shard(x, shard, ends, 4 // parts * i) for i, shard in enumerate(shards)
    ]
    close(torch.stack(results).sum(0), expected)
    found = [
        gradients(result, [x, shard], incoming)
        for result, shard in zip(results, shards, strict=True)
    ]
    close(torch.stack([g[0] for g in found]).sum(0), whole[0])
    close(torch.cat([g[1] for g in found]), whole[1])


def test_a_rank_computes_its_groups_only():
    """Numbers that are not finite show what was multiplied."""
    x = torch.ones(6, 2)
    x[3:] = float("nan")
    got = operators.grouped_mm_shard(x, torch.ones(1, 2, 2), torch.tensor([3, 6]), 0)
    assert torch.equal(got, torch.tensor([2.0] * 3 + [0.0] * 3)[:, None].expand(6, 2))


def test_groups_that_do_not_fit_are_refused():
    ends = torch.tensor([2, 4])
    with pytest.raises(ValueError, match=r"weight \[g, k, n\], got \[4, 3\] and \[2, 2, 3\]"):
        operators.grouped_mm_shard(torch.ones(4, 3), torch.ones(2, 2, 3), ends, 0)
    with pytest.raises(ValueError, match="this rank has 2 from 1 on"):
        operators.grouped_mm_shard(torch.ones(4, 3), torch.ones(2, 3, 3), ends, 1)


# --- rows and entries --------------------------------------------------------


def test_rows_of_any_shape_that_count_from_the_end():
    table = normal(6, 2, 3, seed=1)
    index = torch.tensor([[0, -1, 5], [-6, 3, 3]])
    shards = [part.detach().clone().requires_grad_() for part in table.chunk(3)]
    results = [
        operators.embedding_shard(shard, index, 2 * i, -1, 6) for i, shard in enumerate(shards)
    ]
    close(torch.stack(results).sum(0), table[index])
    incoming = normal(2, 3, 2, 3, seed=2).detach()
    (whole,) = gradients(table[index], [table], incoming)
    found = [gradients(r, [s], incoming)[0] for r, s in zip(results, shards, strict=True)]
    close(torch.cat(found), whole)


def test_fake_tensors_have_the_shapes():
    with FakeTensorMode():
        weight, index = torch.empty(8, 5, requires_grad=True), torch.empty(13, dtype=torch.long)
        offsets = torch.empty(6, dtype=torch.long)
        for row_offset in (-1, 4):
            bags = operators.embedding_bag_shard(weight, index, offsets, (2, 3), row_offset)
            assert bags.shape == (3, 5)
        table = torch.empty(4, 2, 3, requires_grad=True)
        rows = operators.embedding_shard(table, index, 0, -1, 8)
        assert rows.shape == (13, 2, 3)
        assert gradients(rows.sum(), [table], torch.ones(()))[0].shape == table.shape
        product = operators.grouped_mm_shard(torch.empty(12, 2), table, offsets, 2)
        assert product.shape == (12, 3)
        assert gradients(product.sum(), [table], torch.ones(()))[0].shape == table.shape
        assert operators.gather_shard(weight, index[:, None], 0, 8).shape == (13, 1)
