"""Follows every storage that tensors without memory would have."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import disable_fake_tensor_cache
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tensoropt_torch.simulate.kernels import Workspaces
from tensoropt_torch.simulate.known_results import KnownResults
from tensoropt_torch.simulate.ledger import Category, Ledger
from tensoropt_torch.simulate.onednn import MEASURED

_PRIM_DEVICE = torch.ops.prim.device.default
_KERNEL = torch._C.DispatchKey.CompositeExplicitAutograd
# What these make of parameters is a copy for computing.
_COPIES = {
    "aten::_to_copy",
    "tensoropt::reshard",
    "tensoropt::reshard_parameter",
    "tensoropt::begin_value",
    "tensoropt::begin_gathers",
    "tensoropt::take_value",
}


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that writes a ledger, and makes what is given a device on ``device``, the meta one,
    or a CPU's inside ``FakeTensorMode``.

    ATen kernels are seen from outside: their outputs, and the ``workspaces`` that
    are known. The operators of ``csrc/runtime`` are seen from inside: their real
    kernels run on the tensors without memory, so that every intermediate is seen,
    and their collectives do nothing.
    """

    def __init__(self, ledger: Ledger, workspaces: Workspaces, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger
        self._workspaces = workspaces
        self._device = device
        self._numbers: dict[int, int] = {}  # by address of a storage
        self._known = KnownResults() if device.type == "meta" else None
        self._inside = False  # an operator of csrc/runtime

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled by Dynamo meanwhile: its guard around every call takes a third of
        the time."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _PRIM_DEVICE:
            return args[0].fake_device
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its local part comes here
        kwargs = kwargs or {}
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self._device}
        if func.namespace == "c10d":
            return self._communicate(func, args, kwargs)
        if _has_kernel_of_ours(func):
            return self._run_inside(func, args, kwargs)
        if self._inside and _is_composite(func):
            # Below autograd a composite call comes whole.
            with self:
                return func.decompose(*args, **kwargs)
        if not self._inside:
            self._ledger.operator = name_of(func)
        first = len(self._ledger.allocations)
        kernel = MEASURED.get(func._schema.name)
        result = self._result(func, args, kwargs, kernel is not None)
        num_bytes = self._workspaces.output_bytes(func, args, kwargs)
        for tensor in (result,) if isinstance(result, torch.Tensor) else pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.number_of(tensor, num_bytes)
        self._workspaces.note(self._ledger, func, args, kwargs)
        self._label_copies(func, args, first)
        if kernel is not None:
            saved = [self.number_of(result[index]) for index in kernel.saved]
            self._workspaces.note_measured(self._ledger, func, args, saved)
        return result

    def _result(self, func: OpOverload, args: Any, kwargs: dict[str, Any], measured: bool) -> Any:
        if measured:
            return _uncached(func, *args, **kwargs)
        return (
            func(*args, **kwargs) if self._known is None else self._known.call(func, args, kwargs)
        )

    def number_of(self, tensor: torch.Tensor, num_bytes: int | None = None) -> int:
        """The allocation of a tensor's storage, made now if it is not known; of
        ``num_bytes`` where these are not what the tensor takes."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._numbers:
            taken = storage.nbytes() if num_bytes is None else num_bytes
            self._numbers[key] = self._ledger.allocate(taken)
            weakref.finalize(storage, self._free, key)
        return self._numbers[key]

    def label(self, tensor: torch.Tensor | None, category: Category) -> None:
        """Says what the memory of a tensor is for."""
        if tensor is not None:
            local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
            self._ledger.allocations[self.number_of(local)].category = category

    def _communicate(self, func: OpOverload, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The results of a collective that does nothing: its outputs as they are, and
        finished work, which keeps what it holds as long as it lives."""
        self._workspaces.note(self._ledger, func, args, kwargs)
        num_bytes = self._workspaces.bytes_of_work(func, args, kwargs)
        own = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        self.number_of(own)
        held: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        held.set_result(own)
        work = _create_work_from_future(held).boxed()
        return (args[0], work) if len(func._schema.returns) == 2 else work

    def _label_copies(self, func: OpOverload, args: Any, first: int) -> None:
        """Labels what a call made, from this allocation on, if it was made of parameters."""
        if self._inside or func._schema.name not in _COPIES:
            return
        if self._ledger.phase not in ("forward", "backward"):
            return
        given = (leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor))
        if any(self._is_parameter(tensor) for tensor in given):
            self._ledger.label_since(first, "gathered parameters")

    def _is_parameter(self, tensor: torch.Tensor) -> bool:
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is None:
            return False
        return self._ledger.allocations[number].category in ("parameters", "gathered parameters")

    def _free(self, key: int) -> None:
        self._ledger.free(self._numbers.pop(key))

    def _run_inside(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        if self._inside:
            with self:
                return func._op_dk(_KERNEL, *args, **kwargs)
        self._ledger.operator = name_of(func)
        first = len(self._ledger.allocations)
        self._inside = True
        try:
            with self:
                result = func._op_dk(_KERNEL, *args, **kwargs)
        finally:
            self._inside = False
        self._label_copies(func, args, first)
        return result


def _uncached(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The call without the cache of fake tensors: two outputs that are one tensor, as of recurrent
    layers in backward, come out of it as two."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    with nullcontext() if mode is None else disable_fake_tensor_cache(mode):
        return func(*args, **kwargs)


@cache
def _has_kernel_of_ours(func: OpOverload) -> bool:
    return func.namespace == "tensoropt" and func.has_kernel_for_dispatch_key(_KERNEL)


@cache
def _is_composite(func: OpOverload) -> bool:
    return func._can_decompose()


@cache
def name_of(func: OpOverload) -> str:
    """``aten.mm.default`` -> ``mm``."""
    name: str = func._schema.name.split("::")[1]
    return name
