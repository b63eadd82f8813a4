"""Full backward hooks and pre-hooks of modules, as pairs of operators.

One takes the inputs of a call of the module and one its outputs. In a run both are made by
PyTorch's own ``BackwardHook``, one for each call, which gets whole gradients and the stand-in of
the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils import hooks as torch_hooks

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes.nodes import NUMBER
from tensoropt_torch.frontend.python_calls.call_operators import Tensors, bind, define, have_values
from tensoropt_torch.frontend.python_calls.model_names import ModelNames
from tensoropt_torch.frontend.python_calls.standing import (
    BACKWARD,
    BACKWARD_PRE,
    module_hooks,
    running_root,
)
from tensoropt_torch.frontend.python_calls.tensor_hooks import WHY_WHOLE
from tensoropt_torch.frontend.python_calls.texts import Describer, digest


def check_legacy_hooks(model: nn.Module) -> None:
    """Raises TensorOptError if a module has a hook of ``register_backward_hook``."""
    for path, module in model.named_modules():
        if module._backward_hooks and not module._is_full_backward_hook:
            raise TensorOptError(
                f"module '{path}' ({type(module).__name__}) has a hook of register_backward_hook, "
                "whose gradients depend on how the module is written; set it with "
                "register_full_backward_hook"
            )


class ModuleCall:
    """The hooks of one call of a module; what both operators share."""

    def __init__(self, hook: Any, names: ModelNames) -> None:
        module = hook.module
        path = names.module(module)
        self.known = path is not None
        self.path = path or ""
        functions = (*hook.user_hooks, *hook.user_pre_hooks)
        self.digest = digest(repr((self.path, [Describer().text(f) for f in functions])))
        self.has_inputs = False
        self.num_inputs = 0
        self.current: Any = None  # PyTorch's hook of the newest forward

    def begin(self, root: nn.Module) -> Any:
        """PyTorch's hook of a forward."""
        hooks = module_hooks(root)
        everywhere = (
            nn_module._global_backward_hooks if nn_module._global_is_full_backward_hook else {}
        )
        backward = [*everywhere.values(), *hooks.made(root, self.path, BACKWARD)]
        before = nn_module._global_backward_pre_hooks.values()
        pre = [*before, *hooks.made(root, self.path, BACKWARD_PRE)]
        self.current = torch_hooks.BackwardHook(root.get_submodule(self.path), backward, pre)
        return self.current


class _Side:
    """The binding of one of the two operators. ``args`` are those of the hook, with None where
    a tensor is."""

    user_class = None
    why_whole = WHY_WHOLE

    def __init__(self, call: ModuleCall, args: Sequence[Any], side: str) -> None:
        self.call = call
        self._is_tensor = [isinstance(arg, torch.Tensor) for arg in args]
        self._side = side
        self.differentiable = tuple(True for is_tensor in self._is_tensor if is_tensor)

    @property
    def title(self) -> str:
        return f"the backward hooks of module '{self.call.path}' ({self._side})"

    def run(self, tensors: Tensors) -> Tensors:
        root = running_root()
        if root is None or not have_values(tensors):
            return tuple(tensor.view_as(tensor) for tensor in tensors)
        given = iter(tensors)
        args = tuple(next(given) if is_tensor else None for is_tensor in self._is_tensor)
        return tuple(x for x in self._hooked(args, root) if isinstance(x, torch.Tensor))

    def _hooked(self, args: tuple[Any, ...], root: nn.Module) -> tuple[Any, ...]:
        raise NotImplementedError


class Inputs(_Side):
    """Of the inputs."""

    def _hooked(self, args: tuple[Any, ...], root: nn.Module) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.call.begin(root).setup_input_hook(args)
        return found


class Outputs(_Side):
    """Of the outputs."""

    def _hooked(self, args: tuple[Any, ...], root: nn.Module) -> tuple[Any, ...]:
        call = self.call
        hook = call.current if call.has_inputs else call.begin(root)
        if not call.has_inputs:
            hook.setup_input_hook((None,) * call.num_inputs)
        call.current = None
        found: tuple[Any, ...] = hook.setup_output_hook(args)
        return found


def inputs_hooked(hook: Any, args: Any, names: ModelNames) -> Any:
    """``BackwardHook.setup_input_hook`` during a capture."""
    hook.of_capture = call = ModuleCall(hook, names)
    if not call.known:
        raise TensorOptError(
            f"a {type(hook.module).__name__} that is no submodule of the model has backward hooks; "
            "register it as a submodule"
        )
    call.num_inputs = len(args)
    call.has_inputs = any(isinstance(arg, torch.Tensor) for arg in args)
    return _replaced(args, Inputs(call, args, "inputs"), "module_inputs")


def outputs_hooked(hook: Any, result: Any) -> Any:
    """``BackwardHook.setup_output_hook`` during a capture."""
    if isinstance(result, tuple):
        return _replaced(result, Outputs(hook.of_capture, result, "outputs"), "module_outputs")
    binding = Outputs(hook.of_capture, (result,), "outputs")
    return _replaced((result,), binding, "module_outputs")[0]


def _replaced(args: Any, binding: _Side, name: str) -> Any:
    """The arguments, with what the operator gives in the place of tensors."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if not tensors:
        return args
    operator = define(
        f"{name}_{binding.call.digest}_{len(tensors)}", *[len(tensors)] * 2, acts=True
    )
    made = operator(*tensors, **{NUMBER: bind(binding, object())})
    rest = iter(made if len(tensors) > 1 else (made,))
    items = [next(rest) if isinstance(arg, torch.Tensor) else arg for arg in args]
    return tuple(items) if type(args) is tuple else type(args)(*items)
