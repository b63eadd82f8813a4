"""Digests of tensors: equal for equal bits in equal order, and else different."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensoropt_torch.runtime import digests
from tensoropt_torch.runtime.digests import MOST_BYTES, combined, digest_of

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
SHAPES = [(), (1,), (3,), (5, 7), (2, 3, 5, 4), (33, 64)]


def made(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(2, shape, generator=generator).bool()
    return (torch.randn(shape, generator=generator) * 20).to(dtype)


def number(tensor: torch.Tensor) -> int:
    return int(digest_of(tensor))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_element_counts(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    tensor = made(shape, dtype, seed)
    before = number(tensor)
    assert before == number(tensor.clone())
    for index in random.Random(seed).sample(range(tensor.numel()), min(20, tensor.numel())):
        changed = tensor.clone()
        as_bytes = changed.reshape(-1).view(torch.uint8)
        size = tensor.element_size()
        as_bytes[index * size + seed % size] ^= 1 if dtype is torch.bool else 1 << seed % 8
        assert number(changed) != before, index


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_order_of_memory_makes_no_difference(dtype: torch.dtype) -> None:
    tensor = made((6, 4, 5, 8), dtype, 3)
    whole = made((6, 4, 5, 9), dtype, 3)
    for other in (
        tensor.contiguous(memory_format=torch.channels_last),
        tensor.transpose(0, 1).contiguous().transpose(0, 1),
    ):
        assert number(other) == number(tensor)
    assert number(whole[..., 1:]) == number(whole[..., 1:].contiguous())


def test_order_shape_and_dtype_count() -> None:
    tokens = torch.randint(1000, (8, 16))
    assert number(tokens.flip(0)) != number(tokens)
    assert number(tokens.view(16, 8)) != number(tokens)
    assert number(tokens.view(torch.float64)) != number(tokens)
    assert number(torch.zeros(3)) != number(torch.zeros(4))
    assert number(torch.zeros(0)) != number(torch.zeros(0, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_signs_of_several_elements_do_not_cancel(dtype: torch.dtype) -> None:
    """As they do half of the time in a sum of 64-bit words."""
    base = torch.ones(64, dtype=dtype)
    before = number(base)
    for seed in range(50):
        flipped = base.clone()
        flipped[random.Random(seed).sample(range(64), 2)] *= -1
        assert number(flipped) != before, seed


def test_views_of_conjugates_are_read_as_their_values() -> None:
    value = torch.randn(9, dtype=torch.complex64)
    assert number(value.conj()) == number(value.conj().resolve_conj()) != number(value)


@pytest.mark.parametrize("channels_last", [False, True])
def test_of_large_tensors_each_row_counts(channels_last: bool) -> None:
    images = torch.randint(256, (64, 3, 224, 224), dtype=torch.uint8)
    assert images.nbytes > MOST_BYTES
    layout = torch.channels_last if channels_last else torch.contiguous_format
    given = images.contiguous(memory_format=layout)
    before = number(images)
    assert number(given) == before
    for row in range(64):
        kept = given[row].clone()
        given[row] = kept.flip(-1)
        assert number(given) != before, row
        given[row] = kept
    assert number(given[torch.arange(63, -1, -1)]) != before
    given.select(0, 0)[0, 0, 0] ^= 1
    assert number(given) != before


class Largest(TorchDispatchMode):
    """The most elements of a result that has other memory than ``given``."""

    def __init__(self, given: torch.Tensor) -> None:
        super().__init__()
        self.most = 0
        self._memory = given.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            is_own = result.untyped_storage().data_ptr() != self._memory
            self.most = max(self.most, result.numel() * is_own)
        return result


@pytest.mark.parametrize("channels_last", [False, True])
def test_large_tensors_are_not_copied(channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    images = torch.randn(16, 3, 224, 224).contiguous(memory_format=layout)
    digest_of(images)  # makes the weights
    with Largest(images) as largest:
        digest_of(images)
    assert 0 < largest.most <= digests.NUM_BLOCKS * digests.BLOCK


def test_digests_are_combined_in_their_order() -> None:
    assert combined([1, 2]) == combined((1, 2)) != combined([2, 1])
    assert 0 <= combined([-(2**63), 2**63 - 1]) < 2**62


def test_both_ways_to_add_up_agree() -> None:
    """That of CPUs, and that of other devices, which have no product of integers."""
    words, weights = torch.randint(-(2**31), 2**31, (1000,)), digests._weights(torch.device("cpu"))
    whole = torch.dot(words, weights[:1000])
    assert int(whole) == int((words.to(torch.int32) * weights[:1000]).sum())
