"""The part of a ``LightningModule`` that runs under a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch import LightningModule
from torch import nn

from tensoropt_torch.emit import ParallelModule
from tensoropt_torch.errors import TensorOptError

ITSELF = ""  # the name of the LightningModule


def name_of_part(module: LightningModule, name: str | None) -> str:
    """The name of the part: the one that is given, else the only child that has parameters,
    else the module itself.

    Raises:
        TensorOptError: there is no such module, or what is trained is not all inside of it.
    """
    if name is None:
        own = list(module.parameters(recurse=False))
        owners = [child for child, m in module.named_children() if list(m.parameters())]
        name = owners[0] if len(owners) == 1 and not own else ITSELF
    modules = dict(module.named_modules())
    if name not in modules:
        children = ", ".join(child for child, _ in module.named_children())
        raise TensorOptError(
            f"module='{name}' is not in {type(module).__name__}, which has {children}; name one "
            "of its modules, or leave it out"
        )
    inside = {id(p) for p in modules[name].parameters()}
    outside = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in inside]
    if outside:
        raise TensorOptError(
            f"module='{name}' does not have all that is trained: {', '.join(outside[:3])} are "
            "outside of it, and nothing would add up their gradients; name a module that has all "
            "parameters, or leave it out"
        )
    return name


def parallel_in(module: LightningModule, name: str) -> ParallelModule | None:
    """The parallel module that is in this place already."""
    forward = module.__dict__.get("forward")
    part = getattr(forward, "__self__", None) if name == ITSELF else module.get_submodule(name)
    return part if isinstance(part, ParallelModule) else None


def put_in_place(module: LightningModule, name: str, parallel: ParallelModule) -> None:
    """From now on the part of this name is ``parallel``.

    Where that is the ``LightningModule`` itself, the object stays, with its hooks; its
    ``forward``, parameters and buffers become those of ``parallel``.
    """
    owner, _, leaf = name.rpartition(".")
    if name != ITSELF:
        setattr(module.get_submodule(owner), leaf, parallel)
        return
    for path, tensor in _tensors(parallel):
        owner, _, leaf = path.rpartition(".")
        setattr(module.get_submodule(owner), leaf, tensor)
    parallel.register_forward_pre_hook(lambda *_: _copy_modes(module, parallel))
    module.forward = parallel.__call__


@contextmanager
def without_logging(module: LightningModule) -> Iterator[None]:
    """``self.log`` does nothing, as long as there is no loop that keeps what is logged."""
    for name in ("log", "log_dict"):
        module.__dict__[name] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del module.__dict__["log"], module.__dict__["log_dict"]


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _copy_modes(module: nn.Module, parallel: nn.Module) -> None:
    """Whether submodules are in training, to those of the same names."""
    for path, submodule in parallel.named_modules():
        submodule.training = module.get_submodule(path).training
