"""Parameters that belong to several modules which are made parallel.

Each parallel module has parameters of its own, in the layouts of its plan. Of one parameter of two
models there would be two, each trained by itself, where one process trains one. So a model that
shares some with one that was made parallel before, and still is, is refused. Of a model that is
made parallel once more, as under another plan, the newer module is the one: the older one ends.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.parallel_module import ParallelModule, storage_of
from tensoropt_torch.module.stand_ins import StandIn

SHOWN = 3


@dataclass(frozen=True)
class _Owner:
    """A parallel module that was made of a model with a tensor.

    Attributes:
        module: the parallel module, as long as it is there.
        name: that of the tensor in the model.
        count: how many tensors the model had.
    """

    module: weakref.ref[ParallelModule]
    name: str
    count: int


# By tensors of models. Of the whole process, since two models, which may know nothing of each
# other, have nothing but a tensor in common; and no attribute of tensors, which pickles and
# copies of buffers take along.
_owners: MutableMapping[torch.Tensor, list[_Owner]] = WeakTensorKeyDictionary()


def note_parameters(model: nn.Module, parallel: ParallelModule) -> None:
    """``parallel`` was made of ``model``. What was made of the same tensors before ends."""
    for older in _shared(model):
        storage_of(older).end(
            f"this parallel module of {type(model).__name__} ended when the same model was made "
            "parallel once more: each of them has parameters of its own, so that two copies would "
            "be trained. Use the newer one; or for a second one, as for averages of weights, give "
            "copy.deepcopy(model) to parallelize"
        )
    tensors = list(_tensors(model))
    for name, tensor in tensors:
        owners = _owners.setdefault(tensor, [])
        owners[:] = [owner for owner in owners if owner.module() is not None]
        owners.append(_Owner(weakref.ref(parallel), name, len(tensors)))


def check_not_parallel(model: object) -> None:
    """Raises TensorOptError if ``model`` is, or has inside, a parallel module or a part of one."""
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    for name, module in modules:
        if isinstance(module, ParallelModule | StandIn):
            where = f"'{name}' of it is" if name else "it is"
            raise TensorOptError(
                f"{type(model).__name__} cannot be planned or made parallel: {where} a parallel "
                "module already, or a part of one; give the model that it was made of, or "
                "put the modules into one model before, and make that parallel"
            )


def check_not_shared(model: nn.Module) -> None:
    """Raises TensorOptError if some parameters or buffers of ``model``, but not the same ones, are
    also those of a model that was made parallel before, as long as the parallel module is
    there."""
    if not _partly_shared(model):
        return
    gc.collect()  # modules that nobody has any more may be in circles
    shared = _partly_shared(model)
    if not shared:
        return
    other, names = next(iter(shared.items()))
    shown = ", ".join(f"'{own}' ('{there}' there)" for own, there in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    raise TensorOptError(
        f"{type(model).__name__} shares {shown}{more} with a model that was made parallel before, "
        f"of {type(other.original).__name__}: each parallel module has parameters of its own, so "
        "that two copies would be trained, each by itself. Put both into one module, whose forward "
        "calls them, and make that parallel; or, for parameters of its own, give "
        "copy.deepcopy(model); or drop the other parallel module first (del)"
    )


def _partly_shared(model: nn.Module) -> dict[ParallelModule, list[tuple[str, str]]]:
    """As ``_shared``, without modules that have the very tensors of the model."""
    count = sum(1 for _ in _tensors(model))
    return {
        other: [(name, owner.name) for name, owner in found]
        for other, found in _shared(model).items()
        if not len(found) == count == found[0][1].count
    }


def _shared(model: nn.Module) -> dict[ParallelModule, list[tuple[str, _Owner]]]:
    """Modules that were made of tensors of the model, with the names here and what is there."""
    found: dict[ParallelModule, list[tuple[str, _Owner]]] = {}
    for name, tensor in _tensors(model):
        for owner in _owners.get(tensor, []):
            other = owner.module()
            if other is not None and storage_of(other).is_used:
                found.setdefault(other, []).append((name, owner))
    return found


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
