"""Containers in attributes of modules stay the objects that they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.utils import _pytree as pytree

_OF_MODULES = frozenset(vars(nn.Module()))


@contextmanager
def containers_kept(root: nn.Module) -> Iterator[None]:
    """Export puts copies in the place of lists, dicts and the like of modules; others may have
    the same ones. Afterwards the modules have their own again, which nobody has written to."""
    before = [
        (vars(module), {n: v for n, v in vars(module).items() if _is_container(n, v)})
        for module in root.modules()
    ]
    try:
        yield
    finally:
        for own, values in before:
            own.update({name: value for name, value in values.items() if name in own})


def _is_container(name: str, value: object) -> bool:
    return name not in _OF_MODULES and not pytree.tree_is_leaf(value)
