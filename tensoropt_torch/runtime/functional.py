"""Reshards as functional collectives, which PyTorch's compiler knows and traces through.

::

    y = functional.reshard(x, forward, forward_groups, backward, backward_groups)

The arguments are those of ``ops.reshard``, and so are the numbers. What is traced of a call are
calls of ``torch.ops._c10d_functional`` and of ATen, in forward and in backward; nothing of this
file runs in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.step_code import Step, steps_of

_COLLECTIVES = torch.ops._c10d_functional


class NotFunctionalError(TensorOptError):
    """What is asked for has no form in functional collectives; says which part of it."""


def _received(started: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = _COLLECTIVES.wait_tensor(started)
    return value


def _padded(x: torch.Tensor, dim: int, parts: Sequence[int]) -> torch.Tensor:
    """With zeros at the end of a dim, as long as the longest part."""
    missing = max(parts, default=0) - x.shape[dim]
    if not parts or not missing:
        return x
    pads = [0, 0] * (x.dim() - dim - 1) + [0, missing]
    return torch.nn.functional.pad(x, pads)


def _parts_of(x: torch.Tensor, dim: int, count: int, parts: Sequence[int]) -> torch.Tensor:
    """The parts of a dim, one after the other along the first, of equal sizes."""
    if parts:
        pieces = [_padded(piece, dim, parts) for piece in torch.split_with_sizes(x, parts, dim)]
        return torch.cat(pieces)
    if dim == 0:
        return x.contiguous()
    apart = _unflattened(x, dim, count)
    return apart.movedim(dim, 0).flatten(0, 1).contiguous()


def _unflattened(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    shape = x.shape
    return x.reshape((*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]))


def _joined(x: torch.Tensor, dim: int, count: int, parts: Sequence[int]) -> torch.Tensor:
    """The inverse of that: parts, one after the other along the first dim, joined along ``dim``."""
    if parts:
        pieces = x.chunk(count)
        return torch.cat([p.narrow(dim, 0, n) for p, n in zip(pieces, parts, strict=True)], dim)
    if dim == 0:
        return x
    return _unflattened(x, 0, count).movedim(0, dim).flatten(dim, dim + 1)


def _all_gather(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    own = _padded(x, step.dim, step.parts).contiguous()
    started = _COLLECTIVES.all_gather_into_tensor(own, step.size, step.group)
    return _joined(_received(started), step.dim, step.size, step.parts)


def _reduce_scatter(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    parts = _parts_of(x, step.dim, step.size, step.parts)
    started = _COLLECTIVES.reduce_scatter_tensor(parts, "sum", step.size, step.group)
    return _cut(_received(started), step.dim, step.parts, step.index)


def _cut(x: torch.Tensor, dim: int, parts: Sequence[int], index: int) -> torch.Tensor:
    """Without what was put at the end of the part of this number."""
    return x.narrow(dim, 0, parts[index]) if parts else x


def _all_reduce(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    return _received(_COLLECTIVES.all_reduce(x.contiguous(), "sum", step.group))


def _all_to_all(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    own = _padded(x, step.dim, step.parts)
    parts = _parts_of(own, step.to_dim, step.size, step.to_parts)
    rows = [parts.shape[0] // step.size] * step.size
    started = _COLLECTIVES.all_to_all_single(parts, rows, rows, step.group)
    whole = _joined(_received(started), step.dim, step.size, step.parts)
    return _cut(whole, step.to_dim, step.to_parts, step.index)


def _slice(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    parts = step.parts or (x.shape[step.dim] // step.size,) * step.size
    start = sum(parts[: step.index])
    return x.narrow(step.dim, start, parts[step.index]).clone(memory_format=torch.contiguous_format)


def _mask(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    return x if step.index == 0 else torch.zeros_like(x)


# In the order of their numbers.
_RUN: Sequence[Callable[[torch.Tensor, Step[str]], torch.Tensor]] = (
    _all_gather,
    _reduce_scatter,
    _all_reduce,
    _all_to_all,
    _slice,
    _mask,
)


def run(x: torch.Tensor, steps: Sequence[Step[str]]) -> torch.Tensor:
    """What the program makes of the local part.

    Raises:
        NotFunctionalError: of no elements, or of complex numbers.
    """
    if steps and (x.is_complex() or x.numel() == 0):
        what = "complex numbers" if x.is_complex() else "tensors without elements"
        raise NotFunctionalError(f"{what} are resharded")
    for step in steps:
        x = _RUN[step.kind](x, step)
    return x.contiguous() if steps else x


class _Reshard(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        forward: Sequence[Step[str]],
        backward: Sequence[Step[str]],
        dtypes: tuple[torch.dtype | None, torch.dtype | None],
    ) -> torch.Tensor:
        dtype, reduce_dtype = dtypes
        ctx.program, ctx.dtype = backward, reduce_dtype
        ctx.set_materialize_grads(False)
        value = run(x if dtype is None else x.to(dtype), forward)
        return value.view_as(x) if value is x else value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[Any, ...]:
        if gradient is None:
            return None, None, None, None
        sent = gradient if ctx.dtype is None else gradient.to(ctx.dtype)
        return run(sent, ctx.program), None, None, None


def reshard(
    x: torch.Tensor,
    forward: Sequence[int],
    forward_groups: Sequence[str],
    backward: Sequence[int] = (),
    backward_groups: Sequence[str] = (),
    *,
    dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """As ``ops.reshard``.

    Raises:
        NotFunctionalError: it has no form in functional collectives.
    """
    programs = steps_of(forward, forward_groups), steps_of(backward, backward_groups)
    result: torch.Tensor = _Reshard.apply(x, *programs, (dtype, reduce_dtype))  # type: ignore[no-untyped-call]
    return result


class _Left(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, gradient


def left_at(value: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """The value, whose gradient is that of the leaf instead, which has its shape and its dtype."""
    result: torch.Tensor = _Left.apply(value, leaf)  # type: ignore[no-untyped-call]
    return result


class _Held(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        value: torch.Tensor,
        backward: Sequence[Step[str]],
        reduce_dtype: torch.dtype | None,
    ) -> torch.Tensor:
        ctx.program, ctx.reduce_dtype, ctx.dtype = backward, reduce_dtype, x.dtype
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        sent = gradient if ctx.reduce_dtype is None else gradient.to(ctx.reduce_dtype)
        return run(sent, ctx.program).to(ctx.dtype), None, None, None


def held_value(
    x: torch.Tensor,
    value: torch.Tensor,
    backward: Sequence[int],
    backward_groups: Sequence[str],
    *,
    reduce_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """What a reshard has made of ``x`` before, whose gradient goes back by the program."""
    program = steps_of(backward, backward_groups)
    result: torch.Tensor = _Held.apply(x, value, program, reduce_dtype)  # type: ignore[no-untyped-call]
    return result


def all_reduced(x: torch.Tensor, operation: str, group: str) -> torch.Tensor:
    """The sum (or ``"max"``) of the tensors of a group, without gradients."""
    return _received(_COLLECTIVES.all_reduce(x.contiguous(), operation, group))


def forward_sums(
    shares: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    begins: Sequence[int],
    lengths: Sequence[int],
    holders: Sequence[int],
    group: str,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """As the operator of this name; also what buffers become, which are not written to."""
    changed = [_alone(*own) for own in zip(buffers, begins, lengths, strict=True)]
    is_wide = bool(shares) or any(buffer.dtype == torch.float64 for buffer in buffers)
    dtype = torch.float64 if is_wide else torch.float32
    parts = [own.to(dtype).div(count) for own, count in zip(changed, holders, strict=True)]
    parts += [share.detach().to(dtype).view(1) for share in shares]
    total = _received(_COLLECTIVES.all_reduce(torch.cat(parts), "sum", group))
    found = [
        own.reshape(like.shape).to(like.dtype)
        for own, like in zip(
            torch.split(total, [part.numel() for part in parts]), [*buffers, *shares], strict=True
        )
    ]
    return found[len(buffers) :], found[: len(buffers)]


def batch_norm_groups(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    momentum: float,
    eps: float,
    groups: int,
    channel_begin: int = 0,
) -> torch.Tensor:
    """As the operator of this name, where the rows of the rank are one group.

    Raises:
        NotFunctionalError: they are several.
    """
    if groups != 1:
        raise NotFunctionalError(f"batch normalisation by {groups} groups of rows of a rank")
    running = [t.narrow(0, channel_begin, x.shape[1]) for t in (mean, variance) if t is not None]
    own = [t.clone() for t in running]  # autograd saves them, and they are averaged later
    moved: Any = own or [None, None]
    about = weight, bias, moved[0], moved[1]
    y: torch.Tensor = torch.batch_norm(x, *about, True, momentum, eps, False)
    for tensor, new in zip(running, own, strict=True):
        tensor.copy_(new)
    return y


def _alone(buffer: torch.Tensor, begin: int, length: int) -> torch.Tensor:
    """What this rank has changed of it, zeros elsewhere."""
    if length == buffer.numel():
        return buffer
    return torch.nn.functional.pad(
        buffer.narrow(0, begin, length), [begin, buffer.numel() - begin - length]
    )


class _SumOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        return total.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, gradient


def sum_of(total: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The sum of the shares of all ranks, with the gradient of the rank's."""
    result: torch.Tensor = _SumOf.apply(total, share)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True)
class Collective:
    """A call of one in a graph: which, of what, and over which group."""

    name: str
    what: str
    group: str


def collectives_in(graph: torch.fx.Graph) -> Iterator[Collective]:
    """What the ranks have to call alike, in the order of a traced graph."""
    for node in graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and target.namespace == "_c10d_functional":
            if target is _COLLECTIVES.wait_tensor.default:
                continue
            value = node.meta.get("val")
            what = [(tuple(v.shape), str(v.dtype)) for v in _listed(value)]
            yield Collective(str(target), str(what), str(node.args[-1]))


def _listed(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value or ())
