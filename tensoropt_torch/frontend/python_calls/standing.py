"""Which modules stand for those of the model while a parallel module runs.

Hooks get modules, and hold on to modules. In a run those are the stand-ins of the parallel
module that runs; where none does, as where operators are measured, hooks are not called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

_ROOT: ContextVar[nn.Module | None] = ContextVar("_ROOT", default=None)
_SILENT: ContextVar[bool] = ContextVar("_SILENT", default=False)

# Of a stand-in of a whole model: the dicts of hooks of the model's modules, by path.
_HOOKS = "_hooks_of_model"
_IS_SILENT = "_are_hooks_silent"
KINDS = ("_backward_hooks", "_backward_pre_hooks")


@contextmanager
def run_by(root: nn.Module) -> Iterator[None]:
    """Calls inside are those of the parallel module whose modules ``root`` has."""
    token = _ROOT.set(None if vars(root).get(_IS_SILENT) else root)
    try:
        yield
    finally:
        _ROOT.reset(token)


@contextmanager
def hooks_silent() -> Iterator[None]:
    """Modules that become parallel inside measure something: they call no hook."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


def are_hooks_silent() -> bool:
    """Whether modules that become parallel here measure something."""
    return _SILENT.get()


def running_root() -> nn.Module | None:
    """Of the parallel module that runs, unless its hooks are silent."""
    return _ROOT.get()


def remember_hooks(model: nn.Module, root: nn.Module) -> None:
    """The hooks that modules of ``model`` have belong to the stand-ins of ``root``: those that
    are removed are not called, and none where hooks are silent."""
    vars(root)[_IS_SILENT] = _SILENT.get()
    found = {
        path: {kind: getattr(module, kind) for kind in KINDS}
        for path, module in model.named_modules()
        if any(getattr(module, kind, None) for kind in KINDS)
    }
    vars(root)[_HOOKS] = found


def is_removed(root: nn.Module, path: str, kind: str, number: int) -> bool:
    """Whether a hook of the model's module has been removed since."""
    known: Mapping[str, Mapping[str, Any]] = vars(root).get(_HOOKS, {})
    return path in known and number not in known[path][kind]
