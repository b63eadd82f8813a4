"""Attention on tensors without memory, by the kernel that a device would take.

``scaled_dot_product_attention`` looks for its kernel by the device of what it is given: on the
meta device there is none but matrix products, which keep all scores for backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tensoropt_torch.config import DeviceType
from tensoropt_torch.frontend.lowering import arguments_by_name
from tensoropt_torch.simulate.gpu_attention import has_fused_kernel

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default
_FUSED = aten._scaled_dot_product_flash_attention_for_cpu.default
_EFFICIENT = aten._scaled_dot_product_efficient_attention.default  # of GPUs


def set_attention(node: fx.Node, device: DeviceType) -> None:
    """Lets a node of a rank's graph that calls attention, or gives it to what calls it, have it by
    the kernel of a device of this type."""
    if node.op == "call_function":
        own = _OPERATORS[device]
        node.target = own if node.target is ATTENTION else node.target
        node.args = tuple(own if arg is ATTENTION else arg for arg in node.args)


class _FusedAttention:
    """Calls attention by a fused kernel where a device of the type would."""

    def __init__(self, device: DeviceType) -> None:
        self._on_cpu = device == "cpu"
        self._is_fused: dict[Any, bool] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        key = pytree.tree_map(_kind, (args, tuple(sorted(kwargs.items()))))
        if key not in self._is_fused:
            self._is_fused[key] = self._takes_fused_kernel(args, kwargs)
        found: torch.Tensor = (_fused if self._is_fused[key] else ATTENTION)(*args, **kwargs)
        return found

    def _takes_fused_kernel(self, args: Any, kwargs: Any) -> bool:
        if self._on_cpu:
            return _takes_kernel_of_cpu(args, kwargs)
        return has_fused_kernel(arguments_by_name(ATTENTION, args, kwargs))


def _kind(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.stride(), value.dtype, value.requires_grad


class _Seen(TorchDispatchMode):
    """Whether the fused kernel is called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fused: bool = False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.fused |= func is _FUSED
        return func(*args, **(kwargs or {}))


def _takes_kernel_of_cpu(args: Any, kwargs: Any) -> bool:
    """Whether the kernel of a CPU is taken, found by a call with fake tensors of a CPU."""

    def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        return made.requires_grad_(tensor.requires_grad)

    unseen = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    with _disable_current_modes(), unseen, FakeTensorMode(), _Seen() as seen:
        args, kwargs = pytree.tree_map_only(torch.Tensor, on_cpu, (args, kwargs))
        ATTENTION(*args, **kwargs)
    return bool(seen.fused)


def _fused(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The call as the fused kernel: that of CPUs, which keeps as much as those of GPUs, but for
    masks that need gradients, which it does not take."""
    given: Mapping[str, Any] = arguments_by_name(ATTENTION, args, kwargs)
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        dtype = given["query"].dtype
        left_out = torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device)
        taken = torch.scalar_tensor(0.0, dtype=dtype, device=mask.device)
        mask = torch.where(mask, taken, left_out)
    operands = given["query"], given["key"], given["value"]
    dropout_p, causal = given.get("dropout_p", 0.0), given.get("is_causal", False)
    scale = given.get("scale")
    found: torch.Tensor
    if mask is not None and mask.requires_grad:
        scores = (*operands[0].shape[:3], operands[1].shape[2])
        given_mask = (mask.expand(scores), True, dropout_p, causal)
        found = _EFFICIENT(*operands, *given_mask, scale=scale)[0]
    else:
        found = _FUSED(*operands, dropout_p, causal, attn_mask=mask, scale=scale)[0]
    return found


_LIBRARY: Any = torch.library.Library("tensoropt_simulated", "DEF")  # type: ignore[no-untyped-call]


def _operator(device: DeviceType) -> OpOverload:
    """Which a graph has in place of attention."""
    _, arguments = str(ATTENTION._schema).split("(", 1)
    _LIBRARY.define(f"attention_of_{device}({arguments}")
    _LIBRARY.impl(f"attention_of_{device}", _FusedAttention(device), "CompositeImplicitAutograd")
    found: OpOverload = getattr(torch.ops.tensoropt_simulated, f"attention_of_{device}").default
    return found


_OPERATORS: Mapping[DeviceType, OpOverload] = {
    kind: _operator(kind) for kind in get_args(DeviceType)
}
