"""Which modules stand for those of the model while a parallel module runs.

Hooks get modules, and hold on to modules. In a run those are the stand-ins of the parallel
module that runs; where none does, as where operators are measured, hooks are not called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.python_calls.model_names import ModelNames
from tensoropt_torch.frontend.python_calls.user_functions import UserFunction, rebound

_ROOT: ContextVar[nn.Module | None] = ContextVar("_ROOT", default=None)
_SILENT: ContextVar[bool] = ContextVar("_SILENT", default=False)

_HOOKS = "_hooks_of_model"  # attribute of a stand-in of a whole model
BACKWARD, BACKWARD_PRE = "_backward_hooks", "_backward_pre_hooks"
KINDS = (BACKWARD, BACKWARD_PRE, "_forward_hooks", "_forward_pre_hooks")

HookCounts = Mapping[str, tuple[int, ...]]  # of each kind, by the path of a module that has some


def hook_counts(model: nn.Module) -> HookCounts:
    """How many hooks the modules of a model have."""
    counts = {
        path: tuple(len(getattr(module, kind)) for kind in KINDS)
        for path, module in model.named_modules()
    }
    return {path: count for path, count in counts.items() if any(count)}


def check_hooks(model: nn.Module, captured: HookCounts) -> None:
    """Raises TensorOptError unless the model has the hooks that it had when it was captured."""
    now = hook_counts(model)
    for path in {**captured, **now}:
        if now.get(path) != captured.get(path):
            raise TensorOptError(
                f"module '{path}' had other hooks when the model was captured than it has now; "
                "plan again, or give example inputs with the loaded plan, so that it is captured "
                "with the hooks that it has"
            )


@contextmanager
def run_by(root: nn.Module) -> Iterator[None]:
    """Calls inside are those of the parallel module whose modules ``root`` has."""
    hooks: ModuleHooks | None = vars(root).get(_HOOKS)
    token = _ROOT.set(None if hooks is None or hooks.silent else root)
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


class ModuleHooks:
    """The backward hooks of the modules of a model that has become parallel. Those that are
    removed later are not called."""

    def __init__(self, model: nn.Module) -> None:
        self.silent = _SILENT.get()
        self._names = ModelNames.of(model)
        self._known: dict[tuple[str, str], tuple[Mapping[int, Any], list[int]]] = {}
        self._functions: dict[int, UserFunction] = {}
        for path, module in model.named_modules():
            for kind in (BACKWARD, BACKWARD_PRE):
                hooks = getattr(module, kind)
                self._known[path, kind] = hooks, list(hooks)
                for number, function in hooks.items():  # says now what cannot be
                    what = f"a backward hook of module '{path}'"
                    self._functions[number] = UserFunction(function, self._names, what)

    def made(self, root: nn.Module, path: str, kind: str) -> list[Callable[..., Any]]:
        """Those of a module as they are called in a step. Collective."""
        hooks, numbers = self._known[path, kind]
        return [self._functions[n].made(root, ()) for n in numbers if n in hooks]


def remember_hooks(model: nn.Module, root: nn.Module) -> None:
    """The hooks that modules of ``model`` have belong to the stand-ins of ``root``."""
    vars(root)[_HOOKS] = ModuleHooks(model)


def module_hooks(root: nn.Module) -> ModuleHooks:
    """Those of a parallel module."""
    hooks = vars(root)[_HOOKS]
    assert isinstance(hooks, ModuleHooks)
    return hooks


def rebind_forward_hooks(copy: nn.Module, model: nn.Module) -> None:
    """Forward hooks of a copy of ``model`` hold what the copy has in place of the model's."""
    if copy is model:
        return
    names = ModelNames.of(copy)
    for path, module in copy.named_modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for number, function in list(hooks.items()):
                what = f"a forward hook of module '{path}'"
                hooks[number] = rebound(function, names, copy, what)
