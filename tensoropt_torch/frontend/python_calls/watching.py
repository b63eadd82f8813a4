"""What a call of Python does to tensors, seen while it runs on tensors without values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_MAKES_CONSTANTS = ("lift_fresh", "lift_fresh_copy", "lift")


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operator that a call runs.

    Attributes:
        problem: the first thing that it must not do, in words; empty: there is none.
        random: whether it drew numbers.
    """

    def __init__(self, operands: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.problem = ""
        self.random = False
        self._phase = "forward"
        self._operands = {_place(tensor): i for i, tensor in enumerate(operands)}
        self._known: dict[int, torch.Tensor] = {}  # kept: places are used again
        self.know(operands)

    def know(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are its own from now on."""
        self._known |= {_place(tensor): tensor for tensor in tensors}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs inside is called so in words."""
        self._phase = name
        with self:
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Runs the operator, and remembers what it touches."""
        kwargs = kwargs or {}
        self.random = self.random or torch.Tag.nondeterministic_seeded in func.tags
        made = func._schema.name.removeprefix("aten::") in _MAKES_CONSTANTS
        if not made:
            self._look_at(func, args, kwargs)
        result = func(*args, **kwargs)
        self.know(_tensors(result))
        return result

    def _look_at(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        for tensor in _tensors((args, kwargs)):
            if _place(tensor) not in self._known:
                shape = tuple(tensor.shape)
                self._found(
                    f"its {self._phase} uses a tensor (shape {shape}, {tensor.dtype}, in {func}) "
                    "that is no argument of apply, such as a parameter of a module or a global "
                    "table; pass it as an argument of apply"
                )
        for declared, value in zip(func._schema.arguments, args, strict=False):
            if declared.alias_info is None or not declared.alias_info.is_write:
                continue
            for tensor in _tensors(value):
                number = self._operands.get(_place(tensor))
                if number is not None:
                    self._found(
                        f"its {self._phase} changes its tensor argument {number} in place "
                        f"({func}); let it work on a copy (clone) and return that"
                    )

    def _found(self, problem: str) -> None:
        self.problem = self.problem or problem


def _place(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
