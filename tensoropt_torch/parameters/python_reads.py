"""What Python asks of parameters and gradients of a parallel module: numbers, lists, texts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.parameters.whole_reads import check_not_beside
from tensoropt_torch.runtime.stage_groups import is_mesh_of_module

_NUMBERS = ("__float__", "__int__", "__index__", "__bool__", "__complex__")
_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@functools.cache
def know_python_reads() -> None:
    """From now on, in this process."""
    tensors: Any = DTensor
    for name in _NUMBERS:
        setattr(tensors, name, _of_job(name, _number))
    tensors.tolist = _of_job("tolist", lambda _, tensor: tensor.detach().full_tensor().tolist())
    tensors.numpy = _of_job("numpy", _refuse_numpy)
    tensors.__format__ = _of_job("__format__", _formatted)
    for name in (*_OPERATORS, *_COMPARISONS):
        setattr(tensors, f"__{name}__", _of_job(f"__{name}__", _beside(name)))
    for name in _OPERATORS:
        setattr(tensors, f"__r{name}__", _of_job(f"__r{name}__", _reflected(name)))


def _of_job(name: str, way: Callable[..., Any]) -> Callable[..., Any]:
    """The method of this name; ``way`` is for tensors of the job."""
    inherited = getattr(DTensor, name)

    @functools.wraps(inherited)
    def call(self: DTensor, *args: Any, **kwargs: Any) -> Any:
        if is_mesh_of_module(self.device_mesh):
            return way(inherited, self, *args, **kwargs)
        return inherited(self, *args, **kwargs)

    return call


def _number(inherited: Callable[..., Any], tensor: DTensor) -> Any:
    """``torch.tensor([p.norm(), ...])`` asks for numbers where operators on classes of tensors are
    turned off, and would read memory that a ``DTensor`` has not."""
    with _classes_of_tensors():
        return inherited(tensor)


@contextmanager
def _classes_of_tensors() -> Iterator[None]:
    keys = torch._C.DispatchKey
    excluded: Any = torch._C._dispatch_tls_local_exclude_set()
    if not excluded.has(keys.Python):
        yield
        return
    for key in (keys.Python, keys.PythonTLSSnapshot):
        excluded = excluded.remove(key)
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        yield


def _formatted(inherited: Callable[..., str], tensor: DTensor, spec: str) -> str:
    """With a format a number of the whole; without one what the rank has, as ``print`` shows."""
    if spec and tensor.dim() == 0:
        return format(tensor.item(), spec)
    return inherited(tensor, spec)


def _refuse_numpy(*_: Any, **__: Any) -> NoReturn:
    raise TensorOptError(
        "a parameter or gradient of a parallel module was asked for a NumPy array, which would be "
        "of a part; write p.full_tensor().numpy(), on all ranks alike"
    )


def _beside(name: str) -> Callable[..., Any]:
    """``p * x``: not of a plain tensor that is no number."""

    def operator(inherited: Callable[..., Any], tensor: DTensor, other: Any) -> Any:
        check_not_beside(name, other)
        return inherited(tensor, other)

    return operator


def _reflected(name: str) -> Callable[..., Any]:
    """As ``_beside``, of ``x * p``, which Python asks for first, as of any subclass."""

    def operator(inherited: Callable[..., Any], tensor: DTensor, other: Any) -> Any:
        check_not_beside(name, other)
        return NotImplemented if isinstance(other, torch.Tensor) else inherited(tensor, other)

    return operator
