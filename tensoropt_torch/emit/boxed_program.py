"""What a tape has recorded: where tensors lie, and the two functions that make its calls again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import fx

from tensoropt_torch.frontend.call_context import Autocast, current_autocast

Lies = tuple[tuple[int, ...], tuple[int, ...]]  # a shape, and strides


@dataclass(frozen=True)
class Geometry:
    """Where a tensor lies.

    Attributes:
        memory: the first node that had it.
        dtype, size, stride, offset: how the tensor lies in that.
    """

    memory: fx.Node
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: torch.Tensor, memory: fx.Node) -> Geometry:
        """That of a tensor in this memory."""
        lies = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
        return Geometry(memory, tensor.dtype, *lies)

    @property
    def is_contiguous(self) -> bool:
        """Whether the last dim is the innermost, and so on, without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            if stride != expected:
                return False
            expected *= size
        return True


class Takes(Protocol):
    """Who takes gradients."""

    def take(self, number: int, gradient: torch.Tensor) -> None:
        """That of the leaf of this number."""


@dataclass(frozen=True)
class BoxedProgram:
    """What was recorded.

    Attributes:
        forward: takes the inputs; gives the outputs, then what backward needs besides.
        backward: takes a list, which it empties, of the inputs ``needs``, what forward gave
            besides, and the gradients of the outputs that had one; and who takes gradients of
            leaves that have memory of their own and lie as the leaves do, by their numbers, as
            soon as they are made. Gives the others, or None.
        needs: numbers of inputs.
        outputs: how many there are.
        constant: the numbers of outputs that have no gradient.
        tangents: shapes and strides of the gradients that backward takes, None where it has none.
        autocast: the casts, by kind of device, under which backward ran.
        held: the numbers of outputs whose memory backward needs.
    """

    forward: Callable[..., Sequence[torch.Tensor]]
    backward: Callable[[list[torch.Tensor], Takes], Sequence[torch.Tensor | None]]
    needs: tuple[int, ...]
    outputs: int
    constant: tuple[int, ...]
    tangents: tuple[Lies | None, ...]
    autocast: Autocast
    held: tuple[int, ...]

    def is_for(self, tangents: Sequence[torch.Tensor | None]) -> bool:
        """Whether a backward with these gradients, now, is the one that was recorded."""
        return self.tangents == geometry_of(tangents) and self.autocast == current_autocast()


def laid_out(
    tangents: Sequence[torch.Tensor | None], known: Sequence[Lies | None] | None
) -> list[torch.Tensor | None]:
    """The gradients, copied where they lie otherwise than those that are ``known``, or, if none
    are, where one element stands for several. So no rank has others than those that it has
    recorded, which would make it run forward again, alone."""
    found = list(tangents)
    for number, tangent in enumerate(tangents):
        if tangent is None:
            continue
        if known is None:
            found[number] = tangent.contiguous() if 0 in tangent.stride() else tangent
            continue
        lies = known[number]
        if lies is not None and lies[1] != tangent.stride() and lies[0] == tuple(tangent.shape):
            found[number] = tangent.new_empty_strided(*lies).copy_(tangent)
    return found


def geometry_of(tangents: Sequence[torch.Tensor | None]) -> tuple[Lies | None, ...]:
    """Shapes and strides of those that there are."""
    return tuple(None if t is None else (tuple(t.shape), t.stride()) for t in tangents)
