"""What may be assigned to the stand-ins of a parallel module's submodules.

The graph of a rank reads parameters and buffers where the stand-ins have them, in the layouts of
the plan, and computes what the modules were at capture. So weights may be tied afterwards where
their layouts are equal; other parameters and modules would be left out, or taken for parts.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError

# An attribute of stand-ins that have places in the tree. A slice of a list of modules makes another
# list of the same class, which has none.
MADE = "_is_in_parallel_module"


def check_assigned(module: nn.Module, name: str, value: Any) -> None:
    """Raises TensorOptError unless ``module.name = value`` is what the graph goes on with."""
    own = vars(module)
    if MADE not in own:
        return
    if name in own.get("_parameters", ()):
        _check_tensor(module, name, own["_parameters"][name], value)
    elif name in own.get("_buffers", ()):
        _check_tensor(module, name, own["_buffers"][name], value)
    elif name in own.get("_modules", ()):
        if value is not own["_modules"][name]:
            raise TensorOptError(
                f"the submodule '{name}' of a {_kind(module)} in a parallel module was replaced, "
                "which its graph does not see; replace it in the model, and call parallelize again"
            )
    elif isinstance(value, nn.Parameter | nn.Module):
        _refuse_added(module, name)


def check_registered(module: nn.Module, name: str, value: Any) -> None:
    """As ``check_assigned``, for what becomes a parameter, buffer or module."""
    check_assigned(module, name, value)
    if MADE not in vars(module):
        return
    if not any(name in vars(module)[kind] for kind in ("_parameters", "_buffers", "_modules")):
        _refuse_added(module, name)


def _refuse_added(module: nn.Module, name: str) -> NoReturn:
    raise TensorOptError(
        f"'{name}' was added to a {_kind(module)} in a parallel module, whose graph does not have "
        "it; add it to the model, and call parallelize again"
    )


def _check_tensor(module: nn.Module, name: str, before: Any, value: Any) -> None:
    if value is before or _is_alike(before, value):
        return
    raise TensorOptError(
        f"'{name}' of a {_kind(module)} in a parallel module is {_layout(before)} and was replaced "
        f"by {_layout(value)}: the plan fixes shape, dtype and layout. Change its values instead, "
        "by p.copy_(values) under torch.no_grad() or load_state_dict; tie weights in the model, "
        "before parallelize"
    )


def _is_alike(before: Any, value: Any) -> bool:
    if not isinstance(before, torch.Tensor) or not isinstance(value, torch.Tensor):
        return False
    if (before.shape, before.dtype, before.device) != (value.shape, value.dtype, value.device):
        return False
    if isinstance(before, DTensor):
        return (
            isinstance(value, DTensor)
            and isinstance(value, nn.Parameter) >= isinstance(before, nn.Parameter)
            and value.device_mesh is before.device_mesh
            and value.placements == before.placements
        )
    return not isinstance(value, DTensor) and not isinstance(before, nn.Parameter)


def _layout(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value) if value is None else f"a {type(value).__name__}"
    text = f"{tuple(value.shape)} in {value.dtype} on {value.device}"
    if isinstance(value, DTensor):
        return f"{text}, a DTensor with placements {value.placements}"
    return f"{text}, a tensor that is no DTensor"


def _kind(module: nn.Module) -> str:
    return type(module).__name__
