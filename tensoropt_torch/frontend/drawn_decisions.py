"""What a forward pass does or leaves out as a random number of PyTorch decides: LayerDrop.

A captured graph would do the same in every step, so such a decision is refused. But what
``torch.rand(()) < p`` is does not depend on the number where ``p`` is 0 or 1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.user_lines import line_of_call

_KIND = "_tensoropt_drawn"  # the attribute of a tensor with what is known of it


class _Drawn(Enum):
    """What is known of a single number, or of an answer, that follows from drawn ones."""

    FROM_0_TO_1 = "from 0 to below 1"
    ANY = "any"
    ALWAYS = "always true"
    NEVER = "never true"


_UNIFORM = frozenset({"rand", "rand_like"})
_OTHERS = frozenset(
    {"randn", "randn_like", "randint", "randint_like", "bernoulli", "bernoulli_", "normal"}
    | {"uniform_", "normal_", "random_", "exponential_", "multinomial"}
)
_SAME_NUMBER = frozenset({"__getitem__", "squeeze", "reshape", "view", "detach", "cpu", "to"})
_COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge")}
# Drawn numbers, if any. 0 itself comes once in 16 million draws: `rand > 0` counts as true.
_SMALLEST, _LARGEST = 2.0**-53, 1 - 2.0**-53


class DrawnDecisions(TorchFunctionMode):
    """Refuses what Python decides by a number that was drawn while ``model`` ran."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._is_changed = False  # whether drawn numbers were, in place

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__bool__:
            answer = self._answer(args[0])
            return func(*args) if answer is None else answer
        result, name = func(*args, **kwargs), getattr(func, "__name__", "")
        kind = _kind(name, args, kwargs)
        if kind is not None and _is_single(result):
            setattr(result, _KIND, kind)
        self._is_changed |= bool(_drawn_among(args, kwargs)) and _is_in_place(name)
        return result

    def _answer(self, tensor: torch.Tensor) -> bool | None:
        """The truth of a tensor that follows from drawn numbers; None of another one."""
        kind = getattr(tensor, _KIND, None)
        if kind is None or not isinstance(tensor, FakeTensor) or tensor.constant is not None:
            return None
        if kind in (_Drawn.ALWAYS, _Drawn.NEVER) and not self._is_changed:
            return kind is _Drawn.ALWAYS
        raise TensorOptError(
            f"the forward pass of {self._model} decides with a random number of torch what it does"
            f"{line_of_call()}; a captured graph would do the same in every step. "
            "Set the probability to 0 (LayerDrop: config.layerdrop = 0), or compute both and "
            "choose with torch.where"
        )


def _is_single(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and all(
        isinstance(size, int) and size == 1 for size in value.shape
    )


def _kind(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Drawn | None:
    """What is known of what a function of this name returns; None: it follows from none."""
    if name in _UNIFORM | _OTHERS:
        if kwargs.get("generator") is not None:
            return None
        is_new = name in _UNIFORM and kwargs.get("out") is None
        return _Drawn.FROM_0_TO_1 if is_new else _Drawn.ANY
    if not _drawn_among(args, kwargs):
        return None
    first = _kind_of(args[0]) if args else None
    if name in _SAME_NUMBER and first is not None:
        return first
    if name in _COMPARISONS and first is _Drawn.FROM_0_TO_1 and len(args) == 2:
        return _compared(name, args[1])
    if name in ("logical_not", "__invert__", "bitwise_not") and first is not None:
        return {_Drawn.ALWAYS: _Drawn.NEVER, _Drawn.NEVER: _Drawn.ALWAYS}.get(first, _Drawn.ANY)
    return _Drawn.ANY


def _drawn_among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The operands that follow from drawn numbers."""
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _kind_of(leaf) is not None]


def _kind_of(value: Any) -> _Drawn | None:
    """Only tensors are asked: numbers that are followed note what they are asked for."""
    return getattr(value, _KIND, None) if isinstance(value, torch.Tensor) else None


def _is_in_place(name: str) -> bool:
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _compared(name: str, p: Any) -> _Drawn:
    """What a comparison of a number from 0 to below 1 with ``p`` is."""
    if type(p) not in (int, float) or not (p == 0 or p >= 1 or p <= -1):
        return _Drawn.ANY
    answers = {_COMPARISONS[name](drawn, p) for drawn in (_SMALLEST, _LARGEST)}
    if len(answers) == 2:
        return _Drawn.ANY
    return _Drawn.ALWAYS if answers.pop() else _Drawn.NEVER
