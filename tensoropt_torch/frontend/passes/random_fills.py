"""Random fills in place: ``x.new_empty(shape).bernoulli_(p)``, ``torch.empty_like(x).normal_()``.

What a fill writes depends on the shape and dtype of its memory alone. So it is a call that gives
random numbers for a tensor of that shape, which draws the same ones in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.frontend.passes.nodes import argument, target_name

aten = torch.ops.aten

DrawingCall = tuple[OpOverload, tuple[Any, ...]]


def drawing_call(node: fx.Node) -> DrawingCall | None:
    """What draws the numbers that a fill writes, where it is called otherwise than the fill:
    the operator and its arguments. None for all other calls."""
    name = target_name(node)
    if name == "aten.bernoulli_.float":
        return aten.bernoulli.p, (node.args[0], argument(node, "p"))
    if name == "aten.normal_.default":
        values = (argument(node, "mean"), argument(node, "std"))
        return aten.normal_functional.default, (node.args[0], *values)
    return None
