"""``torch.amp.GradScaler`` for gradients in several layouts.

It unscales all gradients by one call, which also says whether one of them is infinite.
PyTorch exchanges the answer between the ranks that split the first of these ``DTensor``s
(``torch/distributed/tensor/_dispatch.py``). Where parameters lie in different layouts, ranks
may get different answers, and some of them would leave out a step that others make.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tensoropt_torch.runtime.lost_ranks import waiting

_UNSCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default


def agree_on_infinite_gradients() -> None:
    """From now on, in this process, the call is made for each layout by itself; an infinite
    gradient that one of them finds is found by all."""
    dispatcher = getattr(DTensor, "_op_dispatcher", None)
    handlers: Any = getattr(dispatcher, "_custom_op_handlers", {})
    if _UNSCALE in handlers and not isinstance(handlers[_UNSCALE], _ByLayout):
        handlers[_UNSCALE] = _ByLayout(handlers[_UNSCALE])


class _ByLayout:
    """In place of PyTorch's handler of the operator."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def __call__(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        gradients, *others = args
        by_layout: dict[Any, list[DTensor]] = {}
        for gradient in gradients:
            layout = gradient.device_mesh, gradient.placements
            by_layout.setdefault(layout, []).append(gradient)
        with waiting():
            for alike in by_layout.values():
                self._handler(operator, (alike, *others), kwargs)
