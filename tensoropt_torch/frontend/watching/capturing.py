"""Capture, watched: what forward does beside calls of operators has no part in the graph, or is
an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.watching.forward import ForwardWatch
from tensoropt_torch.frontend.watching.leaks import LeakedTensors
from tensoropt_torch.frontend.watching.lifting import Lifted, Numbers, numbers_of, same_tensors
from tensoropt_torch.frontend.watching.numbers import NumberTrace, UnfollowableError
from tensoropt_torch.frontend.watching.random_numbers import Draws, refuse_draws

# How far between their bounds numbers are drawn to see whether they count.
_LOWEST, _HIGHEST = 2.0**-53, 1 - 2.0**-53


class _Captured(Protocol):
    @property
    def graph_module(self) -> fx.GraphModule: ...
    @property
    def constants(self) -> Mapping[str, torch.Tensor]: ...
    @property
    def out_spec(self) -> pytree.TreeSpec: ...
    @property
    def fingerprint(self) -> str: ...


C = TypeVar("C", bound=_Captured)


def watched_capture(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    capture: Callable[[ForwardWatch], C],
) -> C:
    """What ``capture`` gives with forward watched.

    Raises:
        TensorOptError: the graph is not what every call computes.
    """
    draws, leaked = Draws(model), LeakedTensors(type(model).__name__)
    captured = capture(ForwardWatch(model, loss_fn, draws, leaked))
    leaked.check()
    if draws.drawn is not None:
        for share in (_LOWEST, _HIGHEST):
            other = capture(ForwardWatch(model, loss_fn, Draws(model, share)))
            if not same_graphs(captured, other):
                refuse_draws(model, draws)
    return captured


def capture_numbers(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    capture: Callable[[ForwardWatch], C],
    plain: C,
    keys: Sequence[Lifted],
) -> tuple[C, Numbers]:
    """The graph that takes numbers as inputs; ``plain`` is the one with their values.

    Raises:
        UnfollowableError: there is none.
    """
    trace = NumberTrace()
    try:
        marked = capture(ForwardWatch(model, loss_fn, trace=trace, followed=keys))
    except TensorOptError as error:
        raise UnfollowableError(str(error)) from error
    if marked.out_spec != plain.out_spec:
        raise UnfollowableError("the outputs differ")
    numbers = numbers_of(plain, marked, trace, keys)
    return (marked if numbers.marks else plain), numbers


def same_graphs(one: _Captured, other: _Captured) -> bool:
    """Whether two captures of a module compute the same, bit for bit."""
    if (one.fingerprint, one.out_spec) != (other.fingerprint, other.out_spec):
        return False
    names = _constants(one), _constants(other)
    return names[0] == names[1] and all(
        same_tensors(one.constants[name], other.constants[name]) for name in names[0]
    )


def _constants(captured: _Captured) -> Sequence[str]:
    return sorted(captured.constants)
