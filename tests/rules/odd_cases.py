"""The cases of all operators with sizes that do not divide: each size one less than in the
case itself, wherever the operator takes that."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.rules.case import Case, Random

ODD = {4: 3, 6: 5, 8: 7, 12: 11, 24: 23}


def odd_cases(cases: Iterable[Case]) -> Iterator[Case]:
    for case in cases:
        twin = odd_case(case)
        if twin is not None:
            yield twin


def odd_case(case: Case) -> Case | None:
    """The case with odd sizes; None if there is no such one."""
    name = f"{case.name}, odd" if case.name else "odd"
    for also_in in ((), (list,), (list, int)):
        args, kwargs = (_odd(value, also_in) for value in (case.args, case.kwargs))
        twin = replace(case, args=args, kwargs=kwargs, name=name)
        if twin != replace(case, name=name) and _runs(twin):
            return twin
    return None


def is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _odd(value: Any, also_in: tuple[type, ...]) -> Any:
    """With odd sizes of the tensors in it, and odd numbers in literals of these types."""
    if isinstance(value, Random):
        shape = tuple(ODD.get(size, size) for size in value.shape)
        high = value.high if is_inexact(value.dtype) else ODD.get(value.high, value.high)
        return replace(value, shape=shape, high=high)
    if isinstance(value, dict):
        return {key: _odd(item, also_in) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_odd(item, also_in) for item in value)
    if isinstance(value, list):
        literals = all(isinstance(item, int) for item in value)
        inside = (*also_in, int) if literals and list in also_in else ()
        return [_odd(item, inside if literals else also_in) for item in value]
    if type(value) is int and int in also_in:
        return ODD.get(value, value)
    return value


def _runs(case: Case) -> bool:
    args, kwargs = case.draw()
    try:
        with torch.random.fork_rng(devices=[]):
            outputs = case.overload(*args, **kwargs)
    except (RuntimeError, IndexError, ValueError):
        return False
    return all(tensor.numel() > 0 for tensor in pytree.tree_leaves(outputs))
