"""Reshards as functional collectives, which PyTorch's compiler knows and traces through.

::

    y = functional.reshard(x, forward, forward_groups, backward, backward_groups)

The arguments are those of ``ops.reshard``, and so are the numbers. What is traced of a call are
calls of ``torch.ops._c10d_functional`` and of ATen, in forward and in backward; nothing of this
file runs in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.step_code import Step
from tensoropt_torch.step_code import steps_of as steps_in

_COLLECTIVES = torch.ops._c10d_functional


class NotFunctionalError(TensorOptError):
    """What is asked for has no form in functional collectives; says which part of it."""


def steps_of(program: Sequence[int], groups: Sequence[str]) -> list[Step[str]]:
    """Those of an encoded program with its groups.

    Raises:
        NotFunctionalError: parts differ in size.
    """
    found = list(steps_in(program, groups))
    if any(step.is_uneven for step in found):
        raise NotFunctionalError("the parts of a reshard differ in size")
    return found


def _received(started: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = _COLLECTIVES.wait_tensor(started)
    return value


def _parts_of(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """The parts of a dim, one after the other along the first."""
    if dim == 0:
        return x.contiguous()
    apart = _unflattened(x, dim, count)
    return apart.movedim(dim, 0).flatten(0, 1).contiguous()


def _unflattened(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    shape = x.shape
    return x.reshape((*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]))


def _joined(parts: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """The inverse of that: parts, one after the other along the first dim, joined along ``dim``."""
    if dim == 0:
        return parts
    return _unflattened(parts, 0, count).movedim(0, dim).flatten(dim, dim + 1)


def _all_gather(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    started = _COLLECTIVES.all_gather_into_tensor(x.contiguous(), step.size, step.group)
    return _joined(_received(started), step.dim, step.size)


def _reduce_scatter(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    parts = _parts_of(x, step.dim, step.size)
    return _received(_COLLECTIVES.reduce_scatter_tensor(parts, "sum", step.size, step.group))


def _all_reduce(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    return _received(_COLLECTIVES.all_reduce(x.contiguous(), "sum", step.group))


def _all_to_all(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    parts = _parts_of(x, step.to_dim, step.size)
    rows = [parts.shape[0] // step.size] * step.size
    started = _COLLECTIVES.all_to_all_single(parts, rows, rows, step.group)
    return _joined(_received(started), step.dim, step.size)


def _slice(x: torch.Tensor, step: Step[str]) -> torch.Tensor:
    length = x.shape[step.dim] // step.size
    return x.narrow(step.dim, step.index * length, length).clone(
        memory_format=torch.contiguous_format
    )


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


def scalar_sums(shares: Sequence[torch.Tensor], group: str) -> list[torch.Tensor]:
    """The sums of scalars over the ranks of a group, added up in float64, without gradients."""
    flat = torch.stack([share.detach().to(torch.float64) for share in shares])
    total = _received(_COLLECTIVES.all_reduce(flat, "sum", group))
    return [total[i].to(share.dtype) for i, share in enumerate(shares)]


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


def collectives_in(graph: torch.fx.Graph) -> Iterator[tuple[str, str]]:
    """What the ranks have to call alike, in the order of a traced graph: each collective, and of
    what."""
    for node in graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and target.namespace == "_c10d_functional":
            if target is _COLLECTIVES.wait_tensor.default:
                continue
            value = node.meta.get("val")
            what = [(tuple(v.shape), str(v.dtype)) for v in _listed(value)]
            yield str(target), str(what)


def _listed(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value or ())
