"""Parameters that belong to several modules which are made parallel.

Each parallel module has parameters of its own, in the layouts of its plan. Of one parameter of two
models there would be two, each trained by itself, where one process trains one. So a model that
shares some with one that was made parallel before, and still is, is refused.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from tensoropt_torch.errors import TensorOptError

SHOWN = 3

# Of tensors of models: the parallel modules made of them, and their names there.
_Owner = tuple["weakref.ref[nn.Module]", str]
_owners = WeakTensorKeyDictionary()


def note_parameters(model: nn.Module, parallel: nn.Module) -> None:
    """``parallel`` was made of ``model``."""
    for name, tensor in _tensors(model):
        owners: list[_Owner] = _owners.setdefault(tensor, [])
        owners[:] = [owner for owner in owners if owner[0]() is not None]
        owners.append((weakref.ref(parallel), name))


def check_not_shared(model: nn.Module) -> None:
    """Raises TensorOptError if a parameter or buffer of ``model`` is also one of a model that
    was made parallel before, as long as the parallel module is there."""
    if not _shared(model):
        return
    gc.collect()  # modules that nobody has any more may be in circles
    shared = _shared(model)
    if not shared:
        return
    names = ", ".join(f"'{own}' ('{other}' there)" for own, other, _ in shared[:SHOWN])
    more = f" and {len(shared) - SHOWN} more" if len(shared) > SHOWN else ""
    kinds = {other for _, _, other in shared}
    raise TensorOptError(
        f"{type(model).__name__} shares {names}{more} with a model that was made parallel before "
        f"({', '.join(sorted(kinds))}): each parallel module has parameters of its own, so that "
        "two copies would be trained, each by itself. Put both into one module, whose forward "
        "calls them, and make that parallel; or, for parameters of its own, give "
        "copy.deepcopy(model); or drop the other parallel module first (del)"
    )


def _shared(model: nn.Module) -> list[tuple[str, str, str]]:
    """The names here and there, and the class of the other model."""
    found = []
    for name, tensor in _tensors(model):
        for reference, other in _owners.get(tensor, ()):
            parallel = reference()
            if parallel is not None:
                found.append((name, other, parallel._get_name()))
                break
    return found


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
