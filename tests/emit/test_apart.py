"""What a graph writes to is told from memory that it takes besides."""

from __future__ import annotations

import random

import torch

from tensoropt_torch.emit.apart import Apart


def bytes_of(tensor: torch.Tensor) -> set[int]:
    """The addresses between the first and the last byte."""
    if tensor.numel() == 0:
        return set()
    ends = [
        tensor[tuple(place(size) for size in tensor.shape)].data_ptr() for place in (first, last)
    ]
    return {*range(ends[0], ends[1] + tensor.element_size())}


def first(_: int) -> int:
    return 0


def last(size: int) -> int:
    return size - 1


def test_as_sets_of_addresses() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    found = set()
    for _ in range(200):
        memory = torch.zeros(60)
        changed = sorted(rng.sample(range(6), rng.randint(0, 3)))
        apart = Apart(changed)
        taken = [torch.zeros(3) for _ in range(6)]
        for _ in range(6):
            # The next step has some tensors of the one before.
            for number in rng.sample(range(6), rng.randint(0, 3)):
                begin = rng.randrange(54)
                taken[number] = rng.choice((torch.zeros(3), memory[begin : begin + 5 : 2]))
            others = [bytes_of(taken[n]) for n in range(6) if n not in changed]
            written = [bytes_of(taken[n]) for n in changed]
            expected = all(one.isdisjoint(other) for one in written for other in others)
            assert apart.is_so_for(taken) == expected
            found.add(expected)
    assert found == {True, False}


def test_tensors_without_elements_lie_nowhere() -> None:
    memory = torch.zeros(4)
    assert Apart([0]).is_so_for([memory[:2], memory[:0], memory[2:2]])
    assert Apart([1]).is_so_for([memory, memory[:0]])
