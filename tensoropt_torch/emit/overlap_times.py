"""Times of operators and collectives in traced graphs, by the costs of a plan, for Inductor's pass
that moves collectives beside what they may overlap with.

::

    times = OverlapTimes(settings, group_name)
    times(node, None)     # milliseconds; None: Inductor's own estimate
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from tensoropt_torch import _C
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.space.search_space import collective_times
from tensoropt_torch.space.settings import Settings
from tensoropt_torch.units import dtype_name

_KINDS = {
    "all_reduce": _C.Collective.ALL_REDUCE,
    "all_gather_into_tensor": _C.Collective.ALL_GATHER,
    "reduce_scatter_tensor": _C.Collective.REDUCE_SCATTER,
    "all_to_all_single": _C.Collective.ALL_TO_ALL,
}


class OverlapTimes:
    """``group_names`` are those of the process groups of this rank by axis set, as far as the
    plan has some."""

    def __init__(
        self, settings: Settings, axis_sets: Sequence[int], group_name: Callable[[int], str]
    ) -> None:
        self._settings = settings
        self._axes = {group_name(axes): axes for axes in axis_sets}
        self._device = parse_cluster(settings.cluster, "settings").device

    @cached_property
    def _collectives(self) -> _C.MeasuredCollectives:
        return collective_times(self._settings)

    def __getstate__(self) -> dict[str, Any]:
        """Inductor copies and hashes its options; what is of C++ is made again."""
        return {name: value for name, value in vars(self).items() if name != "_collectives"}

    def __call__(self, node: fx.Node, override_bytes: int | None) -> float | None:
        """Of a collective, also if it sent ``override_bytes``, or of a call that computes."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return None
        if target.namespace == "_c10d_functional":
            return self._of_collective(node, target, override_bytes)
        flops = flop_registry.get(target.overloadpacket)
        return None if flops is None else self._of_compute(node, flops)

    def _of_collective(
        self, node: fx.Node, target: torch._ops.OpOverload, override_bytes: int | None
    ) -> float | None:
        kind, axes = _KINDS.get(target._opname), self._axes.get(str(node.args[-1]))
        if kind is None or axes is None:
            return None
        operand, out = node.args[0], node.meta["val"]
        assert isinstance(operand, fx.Node)
        # What the model of costs counts is the larger side.
        sides = (operand.meta["val"], out)
        size = max(side.numel() * side.element_size() for side in sides)
        return 1e3 * self._collectives.time_s(kind, axes, override_bytes or size)

    def _of_compute(self, node: fx.Node, flops_of: Callable[..., int]) -> float | None:
        def value(operand: fx.Node) -> Any:
            return operand.meta["val"]

        out = node.meta["val"]
        if not isinstance(out, torch.Tensor):
            return None
        args, kwargs = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
        flops = flops_of(*args, **kwargs, out_val=out)
        device, share = self._device, self._device.efficiency
        rates = device.flops_per_s
        rate = rates.get(dtype_name(out.dtype), rates.get("float32", 0.0))  # type: ignore[call-overload]
        return 1e3 * flops / (rate * share.matmul) if rate else None
