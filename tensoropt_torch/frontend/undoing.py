"""Running a module so that nothing is left behind: buffers, attributes and random numbers are
as they were.

::

    state = StateBefore(model)
    model(x)
    state.restore()
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

_MAPPINGS = (dict, OrderedDict, defaultdict)
_SEQUENCES = (list, deque)
_NOT_LOOKED_INTO = (type, FunctionType, MethodType, ModuleType, torch.Tensor)
DEPTH = 5  # of containers and objects within attributes that are looked into


class StateBefore:
    """What forward may change of a module besides its parameters: buffers, attributes (also
    inside of lists, dicts, sets and plain objects that they hold), generators; and the random
    states of PyTorch, Python and NumPy. What it cannot know is what hooks and functions of the
    user change elsewhere."""

    def __init__(self, model: nn.Module, *, random_numbers: bool = True) -> None:
        """Without ``random_numbers`` these go on."""
        self._undo: list[Callable[[], None]] = []
        self._seen: set[int] = set()
        self._own = {id(module) for module in model.modules()}
        for module in model.modules():
            self._remember(module, DEPTH)
        if random_numbers:
            self._undo += _random_states()

    def restore(self) -> None:
        """May be called several times."""
        with torch.no_grad():
            for undo in self._undo:
                undo()

    def _remember(self, value: Any, depth: int) -> None:
        comes_by_itself = id(value) in self._own and depth < DEPTH
        if id(value) in self._seen or comes_by_itself or depth == 0:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self._remember_tensor(value)
            return
        if isinstance(value, torch.Generator):
            self._undo.append(partial(_set_state, value, value.get_state()))
            return
        for part in self._parts(value):
            self._remember(part, depth - 1)

    def _remember_tensor(self, tensor: torch.Tensor) -> None:
        if type(tensor) is not torch.Tensor or tensor.is_inference():
            return  # parameters are not written in forward, and of others a copy is no undoing
        copy = tensor.detach().clone()

        def undo() -> None:
            if not torch.equal(tensor, copy):  # batch normalisation counts no version
                tensor.detach().copy_(copy)

        self._undo.append(undo)

    def _parts(self, value: Any) -> list[Any]:
        """What it holds, after its own contents are remembered."""
        if type(value) in _MAPPINGS:
            items = dict(value)
            self._undo.append(partial(_refill_mapping, value, items))
            return list(items.values())
        if type(value) in _SEQUENCES:
            elements = list(value)
            self._undo.append(partial(_refill_sequence, value, elements))
            return elements
        if type(value) is set:
            self._undo.append(partial(_refill_set, value, set(value)))
            return []
        if type(value) is tuple:
            return list(value)
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and not isinstance(value, _NOT_LOOKED_INTO):
            return self._parts(attributes)
        return []


def _set_state(generator: torch.Generator, state: torch.Tensor) -> None:
    generator.set_state(state)


def _refill_mapping(value: dict[Any, Any], items: dict[Any, Any]) -> None:
    alike = len(value) == len(items) and all(
        key in value and value[key] is item for key, item in items.items()
    )
    if not alike:
        value.clear()
        value.update(items)


def _refill_sequence(value: Any, elements: list[Any]) -> None:
    alike = len(value) == len(elements) and all(
        one is other for one, other in zip(value, elements, strict=True)
    )
    if not alike:
        value.clear()
        value.extend(elements)


def _refill_set(value: set[Any], members: set[Any]) -> None:
    if value != members:
        value.clear()
        value.update(members)


def _random_states() -> Iterator[Callable[[], None]]:
    """What puts back each of the random states of the process."""
    state = torch.get_rng_state()
    yield lambda: torch.set_rng_state(state)
    if torch.cuda.is_available():
        on_gpus = torch.cuda.get_rng_state_all()
        yield lambda: torch.cuda.set_rng_state_all(on_gpus)
    of_python = random.getstate()
    yield lambda: random.setstate(of_python)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        of_numpy = numpy.random.get_state()
        yield lambda: numpy.random.set_state(of_numpy)
