"""The parts of a ``LightningModule`` that run under a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from lightning.pytorch import LightningModule
from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.module.staged import StagedModule, foreign_of

ITSELF = ""  # the name of the LightningModule


def names_of_parts(module: LightningModule, names: str | Sequence[str] | None) -> list[str]:
    """The names of the parts: those that are given, else the only child that has parameters, else
    with manual optimization all children that have, else the module itself.

    Raises:
        TensorOptError: there is no such module, one is inside of another, or what is trained is
            not all inside of them.
    """
    if names is None:
        names = _parts_of(module)
    parts = [names] if isinstance(names, str) else list(names)
    modules = dict(module.named_modules())
    for name in parts:
        if name not in modules:
            children = ", ".join(child for child, _ in module.named_children())
            raise TensorOptError(
                f"module='{name}' is not in {type(module).__name__}, which has {children}; name "
                "one of its modules, or leave it out"
            )
    _check_apart(parts)
    inside = {id(p) for name in parts for p in modules[name].parameters()}
    outside = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in inside]
    if outside:
        raise TensorOptError(
            f"module={_said(parts)} does not have all that is trained: {', '.join(outside[:3])} "
            "are outside of it, and nothing would add up their gradients; name a module that has "
            "all parameters, or several, module=['generator', 'discriminator'], or leave it out"
        )
    return parts


def _parts_of(module: LightningModule) -> list[str]:
    own = list(module.parameters(recurse=False))
    owners = [child for child, m in module.named_children() if list(m.parameters())]
    if own or not owners:
        return [ITSELF]
    return owners if len(owners) == 1 or not module.automatic_optimization else [ITSELF]


def _check_apart(names: Sequence[str]) -> None:
    if not names or len(set(names)) != len(names):
        raise TensorOptError(f"module={_said(names)}; name each module once, and one at least")
    for name in names:
        owners = [n for n in names if n != name and (n == ITSELF or name.startswith(f"{n}."))]
        if owners:
            raise TensorOptError(
                f"module={_said(names)}: '{name}' is inside of '{owners[0]}'; name modules that "
                "are apart"
            )


def _said(names: Sequence[str]) -> str:
    return f"'{names[0]}'" if len(names) == 1 else str(list(names))


def parallel_in(module: LightningModule, name: str) -> ParallelModule | None:
    """The parallel module that is in this place already."""
    forward = module.__dict__.get("forward")
    part = getattr(forward, "__self__", None) if name == ITSELF else module.get_submodule(name)
    return part if isinstance(part, ParallelModule) else None


def put_in_place(module: LightningModule, name: str, parallel: ParallelModule) -> None:
    """From now on the part of this name is ``parallel``.

    Where that is the ``LightningModule`` itself, the object stays, with its hooks; its
    ``forward``, parameters and buffers become those of ``parallel``; of other stages it has none.
    """
    owner, _, leaf = name.rpartition(".")
    if name != ITSELF:
        setattr(module.get_submodule(owner), leaf, parallel)
        return
    for path, tensor in _tensors(parallel):
        owner, _, leaf = path.rpartition(".")
        setattr(module.get_submodule(owner), leaf, tensor)
    if isinstance(parallel, StagedModule):
        for path in foreign_of(parallel):
            owner, _, leaf = path.rpartition(".")
            setattr(module.get_submodule(owner), leaf, None)
    assigned = _Assigned(module, parallel)

    def follow(*_: object) -> None:
        _copy_modes(module, parallel)
        assigned.take_over()

    parallel.register_forward_pre_hook(follow)
    module.forward = parallel.__call__


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _copy_modes(module: nn.Module, parallel: nn.Module) -> None:
    """Whether submodules are in training, to those of the same names."""
    for path, submodule in parallel.named_modules():
        submodule.training = module.get_submodule(path).training


class _Assigned:
    """What a loop assigns to parameters and buffers of the ``LightningModule``, as resets of
    batch normalisation do, whose tensors then are no longer those of ``parallel``."""

    def __init__(self, module: nn.Module, parallel: ParallelModule) -> None:
        self._places = []
        for path, _ in _tensors(parallel):
            owner, _, name = path.rpartition(".")
            theirs = module.get_submodule(owner)
            kind = "_parameters" if name in theirs._parameters else "_buffers"
            self._places.append((theirs, parallel.original.get_submodule(owner), kind, name))

    def take_over(self) -> None:
        """From now on they are.

        Raises:
            TensorOptError: the plan has no such tensor.
        """
        for theirs, ours, kind, name in self._places:
            value = vars(theirs)[kind].get(name)
            if value is not vars(ours)[kind].get(name):
                setattr(ours, name, value)
