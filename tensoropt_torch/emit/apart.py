"""Whether tensors lie apart from those that a graph writes to.

::

    apart = Apart(changed)
    if apart.is_so_for(taken): ...    # memory of taken[n], n in changed, is nobody else's
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence

import torch

_ADDRESS = torch.Tensor.data_ptr


class Apart:
    """What a graph takes in one step after the other, of the same shapes and strides. Parameters
    and buffers lie where they lay in the step before, as a rule: only others are looked at.

    Args:
        changed: the numbers of what it writes to.
    """

    def __init__(self, changed: Sequence[int]) -> None:
        self._changed = frozenset(changed)
        self._known: list[int] | None = None  # addresses of a step where all lay apart
        self._written: list[tuple[int, int]] = []  # first and last bytes there, in order

    def is_so_for(self, taken: Sequence[torch.Tensor]) -> bool:
        """Whether nothing else of these has memory of what is changed."""
        if not self._changed:
            return True
        addresses, known = [*map(_ADDRESS, taken)], self._known
        if addresses == known:
            return True
        if known is None or any(addresses[number] != known[number] for number in self._changed):
            self._written = sorted(_bytes_of(taken[number]) for number in self._changed)
            known = None
        moved: Iterable[int] = (
            number
            for number, address in enumerate(addresses)
            if number not in self._changed and (known is None or address != known[number])
        )
        self._known = addresses if all(self._is_beside(taken[n]) for n in moved) else None
        return self._known is not None

    def _is_beside(self, tensor: torch.Tensor) -> bool:
        begin, end = _bytes_of(tensor)
        place = bisect(self._written, (end + 1,))  # those that begin no later than it ends
        return all(last < begin for _, last in self._written[:place])


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first and of the last byte of a tensor; without elements, of none."""
    if tensor.numel() == 0:
        return 0, -1
    reach = sum((size - 1) * s for size, s in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (reach + 1) * tensor.element_size() - 1
