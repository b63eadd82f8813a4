"""Numbers that tell whether two ranks have the same values, bit for bit.

A digest is a sum of 32-bit words times fixed random 64-bit weights, modulo 2**64 (multilinear
hashing): two different sequences of words have the same digest with a probability of about
2**-32. It is one pass over the words, on whatever device they are, and reads nothing back.

Of tensors with more than ``MOST_BYTES`` ``NUM_BLOCKS`` blocks of elements are taken, at even
distances from the first on. They are taken in the order of indices, so that the order of memory
makes no difference, and nothing large is copied.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from functools import cache

import torch

MOST_BYTES = 2**20  # of a tensor of which all elements count
NUM_BLOCKS = 2**12
BLOCK = 16  # elements
_SEED = 0x7E4507
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def digest_of(value: torch.Tensor) -> torch.Tensor:
    """An int64 scalar on the device of the tensor, whose shape and dtype count as well."""
    words = _words(_some_elements(_integers(value.detach())))
    weights = _weights(value.device)[: words.numel()]
    about = digest_of_text(f"{tuple(value.shape)}{value.dtype}")
    if value.device.type == "cpu":  # faster, for integers on CPUs only
        return torch.dot(words.to(torch.int64), weights) + about
    return (words * weights).sum() + about


def digest_of_text(text: str) -> int:
    """Of what is no tensor, or of no strided one."""
    return zlib.crc32(text.encode())


def combined(digests: Sequence[int]) -> int:
    """A number below 2**62 for several digests, in their order."""
    text = ",".join(map(str, digests))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """As many as there are words at most; the same in every process, whatever its default
    device, in whatever mode it asks."""
    generator = torch.Generator("cpu").manual_seed(_SEED)
    most = max(MOST_BYTES, 8 * NUM_BLOCKS * BLOCK) // 4
    made = torch.empty(most, dtype=torch.int64, device="cpu")
    return made.random_(-(2**63), None, generator=generator).to(device)


@cache
def _places(count: int, device: torch.device) -> torch.Tensor:
    """Of the elements of all blocks, among so many."""
    starts = torch.arange(NUM_BLOCKS, device=device) * _distance(count)
    return (starts[:, None] + torch.arange(BLOCK, device=device)).flatten()


def _distance(count: int) -> int:
    return (count - BLOCK) // (NUM_BLOCKS - 1)


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of the elements, in the same memory."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.element_size() > 8:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()])


def _some_elements(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.numel()
    if count * tensor.element_size() <= MOST_BYTES:
        return tensor.reshape(-1)
    if tensor.is_contiguous():
        shape, strides = (NUM_BLOCKS, BLOCK), (_distance(count), 1)
        return tensor.as_strided(shape, strides, tensor.storage_offset()).reshape(-1)
    return tensor.take(_places(count, tensor.device))


def _words(elements: torch.Tensor) -> torch.Tensor:
    """As 32-bit integers, with zeros at the end where that needs some."""
    elements = elements.contiguous()
    size = elements.element_size()
    missing = -elements.numel() * size % 4
    if missing:
        elements = torch.cat([elements, elements.new_zeros(missing // size)])
    elif elements.storage_offset() * size % 4:
        elements = elements.clone()
    return elements.view(torch.int32)
