"""What nodes of a graph call where PyTorch has no function for it, and the passes that
bring products and convolutions into the form that layers of ``torch.nn`` have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import fx

WEIGHT_IN_TORCH = (1, 0)
FILTERS_IN_TORCH = (3, 2, 0, 1)

Order = tuple[int, ...]
Pads = Sequence[int]  # as torch.nn.functional.pad takes them


def dense(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight + bias`` with a weight ``[in, out]``."""
    return F.linear(x, weight.t(), bias)


def convolve(
    x: torch.Tensor,
    filters: torch.Tensor,
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolution of ``[batch, channels, height, width]`` with filters
    ``[height, width, in, out]``."""
    weight = filters.permute(FILTERS_IN_TORCH)
    return convolve_as_torch(x, weight, strides, pads, dilations, bias)


def convolve_as_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolution with filters ``[out, in, height, width]``."""
    left, right, top, bottom = pads
    if left != right or top != bottom:
        x, left, top = F.pad(x, tuple(pads)), 0, 0
    return F.conv2d(x, weight, bias, tuple(strides), (top, left), tuple(dilations))


def max_pool(
    x: torch.Tensor, size: Sequence[int], strides: Sequence[int], pads: Pads
) -> torch.Tensor:
    """Maxima of windows; what lies outside does not count."""
    left, right, top, bottom = pads
    if left != right or top != bottom:
        x, left, top = F.pad(x, tuple(pads), value=float("-inf")), 0, 0
    return F.max_pool2d(x, tuple(size), tuple(strides), (top, left))


def avg_pool(
    x: torch.Tensor, size: Sequence[int], strides: Sequence[int], pads: Pads
) -> torch.Tensor:
    """Means of windows; what lies outside does not count."""
    left, right, top, bottom = pads
    if left == right and top == bottom:
        return F.avg_pool2d(x, tuple(size), tuple(strides), (top, left), count_include_pad=False)
    inside = F.pad(torch.ones_like(x[:1, :1]), tuple(pads))
    share = F.avg_pool2d(inside, tuple(size), tuple(strides))
    return F.avg_pool2d(F.pad(x, tuple(pads)), tuple(size), tuple(strides)) / share


def bias_add(x: torch.Tensor, bias: torch.Tensor, channels_first: bool) -> torch.Tensor:
    """Adds a bias to every channel, the last dim or dim 1."""
    return x + (bias.reshape(-1, 1, 1) if channels_first else bias)


def cross_entropy(labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Mean over all positions; classes are the last dim of the logits. Labels are class
    indices or, with a shape like that of the logits, probabilities."""
    classes = logits.shape[-1]
    if logits.dim() > 2:
        labels = labels.reshape(-1) if labels.dim() < logits.dim() else labels.reshape(-1, classes)
        logits = logits.reshape(-1, classes)
    return F.cross_entropy(logits, labels)


def fuse_bias(graph: fx.Graph) -> None:
    """Give a bias to the product or convolution that it is added to, as the layers of
    ``torch.nn`` have it: one kernel instead of two, one tensor less."""
    for node in list(graph.nodes):
        if node.target is not bias_add:
            continue
        product, bias, _ = node.args
        if product.target in (dense, convolve) and len(product.users) == 1:
            with graph.inserting_before(node):
                fused = graph.call_function(product.target, product.args, {"bias": bias})
            node.replace_all_uses_with(fused)
            graph.erase_node(node)
            graph.erase_node(product)


# The same with a weight as layers of torch.nn store it, and the order of its dims.
_AS_TORCH: Mapping[object, tuple[Callable[..., torch.Tensor], Order]] = {
    dense: (F.linear, WEIGHT_IN_TORCH),
    convolve: (convolve_as_torch, FILTERS_IN_TORCH),
}


def store_as_torch(graph: fx.Graph) -> dict[str, Order]:
    """Let weights that only products or convolutions use be stored as layers of
    ``torch.nn`` store them, so that nothing stands between a parameter and its use.

    Gives the order of the user's dims in which they are stored, by path.
    """
    orders = {}
    for weight in graph.find_nodes(op="get_attr"):
        users = list(weight.users)
        targets = {user.target for user in users}
        only_weight = all(
            user.args[1] is weight and user.args[0] is not weight
            for user in users
            if user.target in _AS_TORCH
        )
        if len(targets) != 1 or not targets <= _AS_TORCH.keys() or not only_weight:
            continue
        function, orders[str(weight.target)] = _AS_TORCH[targets.pop()]
        for user in users:
            user.target = function
    return orders
