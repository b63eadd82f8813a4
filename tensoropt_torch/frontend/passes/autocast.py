"""The casts that ``torch.autocast`` makes inside operators, as calls of the graph.

A captured region says that autocast is on, and not what it does: its linear
layers take float32 and give bfloat16. With the casts written out, the graph
computes the same bits without autocast, and costs and layouts see the dtypes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from tensoropt_torch.frontend.passes.nodes import BUFFER, add_call, computed, value_of

_SETTLED = "autocast_settled"  # in the meta of calls: an inner region has decided


class AutocastRegion:
    """One ``with torch.autocast(...)``; the innermost one counts for a call."""

    def __init__(self, device: Any, dtype: Any, enabled: bool) -> None:
        self._device = str(device)
        self._dtype: torch.dtype = dtype or torch.get_autocast_dtype(self._device)
        self._enabled = enabled
        # Autocast casts a parameter once for the whole region.
        self._parameters: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}

    def call(self, graph: fx.Graph, node: fx.Node) -> None:
        """Cast the operands of a call as autocast does; its value follows."""
        settled = node.meta.get(_SETTLED, False)
        node.meta[_SETTLED] = True
        if self._enabled and not settled:
            dtype = self._operand_dtype(node)
            if dtype is not None:
                self._cast_operands(graph, node, dtype)
        node.meta["val"] = computed(_callable(node), node.args, node.kwargs)

    def result(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        """Results leave in the dtype that they have."""
        return node

    def _operand_dtype(self, node: fx.Node) -> torch.dtype | None:
        """What this call casts its operands to, seen by the dtype of its result.

        Operators that autocast lowers give its dtype. Others give float32, as do
        those for which it promotes operands of several dtypes. Of operators that are
        made of such ones, einsum of products and cross entropy of a softmax, those
        count whose result has another dtype for it.
        """
        if _has_kernel(node, f"Autocast{self._device.upper()}"):
            without = None
        elif _has_kernel(node, "CompositeImplicitAutograd"):
            without = _dtype_of(self._results(node, enabled=False))
        else:
            return None
        dtype = _dtype_of(self._results(node, enabled=True))
        return dtype if dtype in (self._dtype, torch.float32) and dtype != without else None

    def _results(self, node: fx.Node, enabled: bool) -> list[torch.Tensor]:
        """Of fake operands, with or without autocast."""
        autocast = torch.autocast(self._device, self._dtype, enabled, cache_enabled=False)
        with FakeTensorMode(), torch.no_grad():

            def fake(operand: fx.Node) -> Any:
                value = value_of(operand)
                return torch.empty(value.shape, dtype=value.dtype, device=self._device)

            args = fx.map_arg(node.args, fake)
            kwargs = {
                name: self._device if isinstance(value, torch.device) else fx.map_arg(value, fake)
                for name, value in node.kwargs.items()
            }
            with autocast:
                result = _callable(node)(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else [result]
        return [item for item in results if isinstance(item, torch.Tensor)]

    def _cast_operands(self, graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> None:
        with graph.inserting_before(node):
            node.args, node.kwargs = fx.map_arg(
                (node.args, node.kwargs), lambda operand: self._cast(graph, operand, dtype)
            )

    def _cast(self, graph: fx.Graph, operand: fx.Node, dtype: torch.dtype) -> fx.Node:
        value = value_of(operand)
        if not value.is_floating_point() or value.dtype in (dtype, torch.float64):
            return operand
        cached = self._parameters.get((operand, dtype))
        if cached is not None:
            return cached
        cast = add_call(graph, torch.ops.aten.to.dtype, (operand, dtype), operand)
        cast.meta[_SETTLED] = True
        if operand.op == "placeholder" and not operand.meta.get(BUFFER, False):
            self._parameters[operand, dtype] = cast
        return cast


def _has_kernel(node: fx.Node, key: str) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    name = node.target.name()  # type: ignore[no-untyped-call]
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def _dtype_of(results: list[torch.Tensor]) -> torch.dtype | None:
    """Of the first that has a floating-point one."""
    return next((result.dtype for result in results if result.is_floating_point()), None)


def _callable(node: fx.Node) -> Any:
    assert callable(node.target)
    return node.target
