"""Images of tensors tell memories apart, also those that lie where another has lain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensoropt_torch.frontend.watching import image_of


def test_other_memory_is_a_change_wherever_it_lies() -> None:
    again = 0
    for size in (1 << n for n in range(10, 20)):
        tensor = torch.ones(size)
        first, address = image_of(tensor), tensor.data_ptr()
        for _ in range(10):
            tensor.data = torch.ones(size)
            assert image_of(tensor) != first
            again += tensor.data_ptr() == address
    assert again  # memory was given away twice


def test_memory_that_is_put_back_is_no_change() -> None:
    tensor = torch.ones(8)
    first, own = image_of(tensor), tensor.data
    tensor.data = torch.zeros(8)
    assert image_of(tensor) != first
    tensor.data = own
    assert image_of(tensor) == first


def test_another_part_of_the_same_memory_is_a_change() -> None:
    table = torch.arange(8.0)
    tensor = torch.empty(0)
    tensor.data = table[:4]
    first = image_of(tensor)
    tensor.data = table[4:]
    assert image_of(tensor) != first


def test_writes_are_changes() -> None:
    tensor = torch.ones(8)
    first = image_of(tensor)
    assert image_of(tensor) == first
    tensor.add_(1)
    assert image_of(tensor) != first


@pytest.mark.parametrize("write", [lambda t: t.data.fill_(1), lambda t: t.numpy().fill(3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_writes_without_a_version_to_small_tensors_are_changes(
    write: Callable[[torch.Tensor], object], dtype: torch.dtype
) -> None:
    tensor = torch.zeros(8, dtype=dtype)
    first = image_of(tensor)
    assert image_of(tensor) == first
    write(tensor)
    assert image_of(tensor) != first


def test_tensors_without_bytes_have_images() -> None:
    sparse = torch.eye(3).to_sparse()
    for tensor in (torch.ones(3, device="meta"), torch.ones(0), torch.ones(4, 4).T, sparse):
        assert image_of(tensor) == image_of(tensor)
    with FakeTensorMode():
        fake = torch.ones(3)
    assert image_of(fake) == image_of(fake)
