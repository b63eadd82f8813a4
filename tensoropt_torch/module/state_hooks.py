"""Hooks of state dicts that a model has, for the stand-ins of its modules.

A module that renames keys or keeps a state of its own does so through hooks that it registers,
mostly as methods of itself. Those of a stand-in act on the stand-in, and not on the module that it
stands for.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import _WrappedHook

STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)

_OWN_WAYS = ("state_dict", "load_state_dict")  # set on the module itself, not in its class


def rebind_state_hooks(made: Mapping[nn.Module, nn.Module]) -> None:
    """Gives each stand-in hooks of its own, that act on the stand-ins. ``made`` has stand-ins by
    modules; several modules may have the same one."""
    for module, stand_in in made.items():
        own = vars(stand_in)
        for name in STATE_HOOKS:
            hooks: Any = OrderedDict()
            hooks.update({key: _rebound(hook, made) for key, hook in vars(module)[name].items()})
            own[name] = hooks
        for name in _OWN_WAYS:
            if name in vars(module):
                own[name] = _rebound(vars(module)[name], made)


def _rebound(value: Any, made: Mapping[nn.Module, nn.Module]) -> Any:
    """The value with stand-ins in place of modules."""
    if isinstance(value, nn.Module):
        return made.get(value, value)
    if isinstance(value, _WrappedHook):
        module = _rebound(value.module(), made) if value.with_module else None
        return _WrappedHook(_rebound(value.hook, made), module)
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, _rebound(value.__self__, made))
    if isinstance(value, functools.partial):
        keywords = {name: _rebound(v, made) for name, v in value.keywords.items()}
        return functools.partial(value.func, *(_rebound(v, made) for v in value.args), **keywords)
    if isinstance(value, types.FunctionType) and value.__closure__:
        return _closure_rebound(value, made)
    return value


def _closure_rebound(
    function: types.FunctionType, made: Mapping[nn.Module, nn.Module]
) -> types.FunctionType:
    """With stand-ins for the modules that it closes over."""
    cells = function.__closure__ or ()
    found = [_content(cell) for cell in cells]
    if not any(isinstance(value, nn.Module) and value in made for value in found):
        return function
    closure = tuple(
        types.CellType(made[value]) if isinstance(value, nn.Module) and value in made else cell
        for value, cell in zip(found, cells, strict=True)
    )
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, closure
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    vars(copy).update(vars(function))
    return copy


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None
