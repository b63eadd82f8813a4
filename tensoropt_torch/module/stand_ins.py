"""The submodules of a parallel module: they hold its parameters and buffers under the names
of the model, say what they were, and compute nothing."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.assignments import MADE, check_assigned, check_registered
from tensoropt_torch.module.conversions import check_conversion
from tensoropt_torch.module.parametrized import reading_members
from tensoropt_torch.module.state_hooks import rebind_state_hooks

_OWN = ("_parameters", "_buffers", "_modules")
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_HAD_HOOKS = "_tensoropt_had_hooks"


class StandIn:
    """What a stand-in is besides an instance of the class that it stands for."""

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises TensorOptError."""
        raise TensorOptError(
            f"a submodule ({_name(self)}) of a parallel module was called: it runs as a part of "
            "the whole only; call the parallel module, and let the model return what is wanted "
            "besides, or call a copy, whole_model(parallel)"
        )

    def _refuse_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TensorOptError(
            f"a hook on a submodule ({_name(self)}) of a parallel module would never run: register "
            "it on the parallel module itself, or let the model return what it looks at"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """As of a parallel module."""
        check_conversion(self, fn)  # type: ignore[arg-type]
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        check_assigned(self, name, value)  # type: ignore[arg-type]
        super().__setattr__(name, value)

    def register_parameter(self, name: str, param: Any) -> None:
        """As of the class, where the graph goes on with it; else raises TensorOptError."""
        check_registered(self, name, param)  # type: ignore[arg-type]
        super().register_parameter(name, param)  # type: ignore[misc]

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """As ``register_parameter``."""
        check_registered(self, name, tensor)  # type: ignore[arg-type]
        super().register_buffer(name, tensor, persistent)  # type: ignore[misc]

    def add_module(self, name: str, module: Any) -> None:
        """As ``register_parameter``."""
        check_registered(self, name, module)  # type: ignore[arg-type]
        super().add_module(name, module)  # type: ignore[misc]

    register_module = add_module

    register_forward_hook = _refuse_hook
    register_forward_pre_hook = _refuse_hook
    register_full_backward_hook = _refuse_hook
    register_full_backward_pre_hook = _refuse_hook
    register_backward_hook = _refuse_hook


def stand_ins(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    buffers: Mapping[str, torch.Tensor],
    original: nn.Module | None = None,
) -> nn.Module:
    """A tree of stand-ins for the modules of ``model``, with these parameters and buffers,
    each under all of its names; attributes are the model's own. ``original`` is what ``model``
    is a copy of, to which its hooks may still refer."""
    made = {module: _stand_in(module) for module in model.modules()}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        stand_in = made[module]
        for name, child in module._modules.items():
            stand_in._modules[name] = None if child is None else made[child]
        for name in module._parameters:
            stand_in._parameters[name] = parameters.get(prefix + name)
        for name in module._buffers:
            stand_in._buffers[name] = buffers.get(prefix + name)
    originals = zip((original or model).modules(), made.values(), strict=True)
    rebind_state_hooks({**dict(originals), **made})
    return made[model]


def had_hooks(stand_in: nn.Module) -> bool:
    """Whether the module that it stands for had hooks of calls."""
    return bool(vars(stand_in).get(_HAD_HOOKS))


def containers(
    parameters: Mapping[str, nn.Parameter], buffers: Mapping[str, torch.Tensor]
) -> nn.Module:
    """A tree of plain modules with these names, where there is no model to stand for."""
    root = nn.Module()
    for name, parameter in parameters.items():
        owner, leaf = _owner(root, name)
        owner.register_parameter(leaf, parameter)
    for name, buffer in buffers.items():
        owner, leaf = _owner(root, name)
        owner.register_buffer(leaf, buffer)
    return root


def _stand_in(module: nn.Module) -> nn.Module:
    kind: Any = type(module)
    made: nn.Module = object.__new__(_class_of(kind))
    attributes = dict(vars(module))
    attributes[_HAD_HOOKS] = any(attributes.get(name) for name in _HOOKS)
    attributes |= {name: {} for name in _OWN}
    attributes |= {name: OrderedDict() for name in _HOOKS if name in attributes}
    attributes[MADE] = True
    vars(made).update(attributes)
    return made


@functools.cache
def _class_of(kind: Any) -> Any:
    """A class of the same name, whose ``forward`` has the same signature, so that
    ``isinstance``, messages and those who ask for its arguments go on as before."""

    @functools.wraps(kind.forward)
    def forward(self: StandIn, *args: Any, **kwargs: Any) -> NoReturn:
        StandIn.forward(self, *args, **kwargs)

    content = {"__module__": kind.__module__, "forward": forward, **reading_members(kind)}
    return type(kind.__name__, (StandIn, kind), content)


def _name(stand_in: StandIn) -> str:
    return type(stand_in).__name__


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that owns a dotted name, made on the way, and the last part."""
    *path, leaf = name.split(".")
    owner = root
    for part in path:
        child = owner._modules.get(part)
        if child is None:
            child = nn.Module()
            owner.add_module(part, child)
        owner = child
    return owner, leaf
