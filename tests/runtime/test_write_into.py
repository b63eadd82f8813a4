"""Parts lie in a bucket as they are, whatever they are written by."""

from __future__ import annotations

import pytest
import torch

from tensoropt_torch.operators import OPS

KINDS = {
    "contiguous": lambda: [torch.randn(2, 3), torch.randn(4), torch.randn(0), torch.randn(())],
    "transposed": lambda: [torch.randn(2, 3).t(), torch.randn(4)],
    "a slice": lambda: [torch.randn(6)[::2], torch.randn(2, 2)],
    "negated": lambda: [torch.view_as_complex(torch.randn(5, 2)).conj().imag, torch.randn(3)],
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_one_row(kind: str) -> None:
    torch.manual_seed(0)
    parts = KINDS[kind]()
    size = sum(part.numel() for part in parts)
    bucket = torch.zeros(size + 5)
    OPS.write_into_.default(bucket, parts, 1, 2)
    expected = torch.cat([torch.zeros(2), *(p.reshape(-1) for p in parts), torch.zeros(3)])
    assert torch.equal(bucket, expected)


def test_several_rows() -> None:
    first, second = torch.arange(6.0), torch.arange(6.0, 10.0).view(2, 2)
    bucket = torch.zeros(2 * 6)
    OPS.write_into_.default(bucket, [first, second], 2, 1)
    expected = torch.tensor([[0, 0, 1, 2, 6, 7], [0, 3, 4, 5, 8, 9]])
    assert torch.equal(bucket.view(2, 6), expected.float())


@pytest.mark.parametrize("offset", [2, -2])
def test_parts_beyond_the_end_are_refused(offset: int) -> None:
    with pytest.raises(RuntimeError):
        OPS.write_into_.default(torch.zeros(4), [torch.ones(3)], 1, offset)


def test_tensors_without_memory() -> None:
    with torch._subclasses.FakeTensorMode():
        bucket = torch.zeros(8)
        OPS.write_into_.default(bucket, [torch.ones(3), torch.ones(2, 2)], 1, 1)
        assert bucket.shape == (8,)
