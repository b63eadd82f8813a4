"""A module with a bit of everything, and faults of a capture of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import fx, nn
from torch.nn import functional as F

from tensoropt_torch.frontend.passes.constants import FOLDED

ATEN = torch.ops.aten
WIDTH = 6


class _Round(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


class Everything(nn.Module):
    """What can be lost of it, a layer for each.

    Args:
        lost: ``"function"`` or ``"hook"``: capture sees the layer without that, while the module
            itself has it. Otherwise the same is written with operators alone.
    """

    def __init__(self, lost: str = "") -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third, self.fourth = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.table = nn.Embedding(8, WIDTH)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.lost = lost

    def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x)) + self.table(ids)
        hidden = self._rounded(4 * hidden) / 4
        self.seen.mul_(0.5).add_(hidden.detach().mean(0))
        hidden = self.norm(self._hooked(hidden))
        hidden = self.drop(self.second(hidden))
        mask = torch.ones(WIDTH, WIDTH).tril().bool()
        weight = self.third.weight.masked_fill(~mask, 0.0)
        hidden = F.linear(hidden, weight) - self.fourth(hidden)
        steps = (3 * hidden).to(torch.int32).to(hidden.dtype)
        error = F.mse_loss(hidden + steps.detach(), y)
        target = self.fourth(x).detach()
        return error + 0.25 * F.mse_loss(hidden, target) + 0.125 * hidden.abs().mean()

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        if self.lost != "function":
            return x + (x.round() - x).detach()
        return x.round() if torch.compiler.is_exporting() else _Round.apply(x)  # type: ignore[no-untyped-call,no-any-return]

    def _hooked(self, x: torch.Tensor) -> torch.Tensor:
        if self.lost != "hook":
            return 0.5 * x + 0.5 * x.detach()
        if not torch.compiler.is_exporting():
            x.register_hook(lambda gradient: 0.5 * gradient)
        return x


def _calls(graph: fx.Graph, *targets: object) -> list[fx.Node]:
    found = [node for node in graph.nodes if node.target in targets]
    assert found, f"none of {targets} in\n{graph}"
    return found


def _skip(graph: fx.Graph, node: fx.Node, argument: int = 0) -> None:
    """What uses a call uses its argument."""
    node.replace_all_uses_with(node.args[argument])  # type: ignore[arg-type]
    graph.erase_node(node)


def _placeholder(graph: fx.Graph, name: str) -> fx.Node:
    (found,) = [n for n in graph.find_nodes(op="placeholder") if name in n.name]
    return found


def changed_literal(graph: fx.Graph) -> None:
    node = next(n for n in _calls(graph, ATEN.mul.Tensor) if 0.25 in n.args)
    node.args = tuple(0.3 if a == 0.25 else a for a in node.args)


def dropped_dropout(graph: fx.Graph) -> None:
    _skip(graph, _calls(graph, ATEN.dropout.default)[0])


def lost_write(graph: fx.Graph) -> None:
    seen = _placeholder(graph, "seen")
    (copy,) = [n for n in _calls(graph, ATEN.copy_.default) if n.args[0] is seen]
    graph.erase_node(copy)


def lost_detach(graph: fx.Graph) -> None:
    for node in _calls(graph, ATEN.detach.default):
        _skip(graph, node)


def swapped_inputs(graph: fx.Graph) -> None:
    node = _calls(graph, ATEN.sub.Tensor)[-1]
    node.args = (node.args[1], node.args[0], *node.args[2:])


def wrong_constant(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="placeholder"):
        constant = node.meta.get(FOLDED)
        if constant is not None and constant.dtype == torch.bool:
            node.meta[FOLDED] = ~constant


def other_parameter(graph: fx.Graph) -> None:
    first, second = (_placeholder(graph, f"{n}_weight") for n in ("first", "second"))
    second.replace_all_uses_with(first)


def other_mode(graph: fx.Graph) -> None:
    (node,) = _calls(graph, ATEN.batch_norm.default)
    node.args = (*node.args[:5], False, *node.args[6:])


def missing_term(graph: fx.Graph) -> None:
    _skip(graph, _calls(graph, ATEN.add.Tensor)[-1])


def dropped_cast(graph: fx.Graph) -> None:
    nodes = [n for n in graph.nodes if n.op == "call_function" and torch.int32 in n.args]
    for node in nodes:
        (back,) = node.users
        back.replace_all_uses_with(node.args[0])
        graph.erase_node(back)
        graph.erase_node(node)
    assert nodes


# By name: the edit of the graph, and a tensor that is wrong by it.
EDITS: dict[str, tuple[Callable[[fx.Graph], None], str]] = {
    "changed literal": (changed_literal, "the loss or output"),
    "dropped dropout": (dropped_dropout, "the loss or output"),
    "lost write": (lost_write, "buffer 'seen' afterwards"),
    "lost detach": (lost_detach, "the gradient of 'fourth.weight'"),
    "swapped inputs": (swapped_inputs, "the loss or output"),
    "wrong constant": (wrong_constant, "the gradient of 'third.weight'"),
    "other parameter": (other_parameter, "the gradient of 'second.weight'"),
    "other mode": (other_mode, "the loss or output"),
    "missing term": (missing_term, "the loss or output"),
    "dropped cast": (dropped_cast, "the loss or output"),
}
# What capture sees otherwise than the module, and a tensor that is wrong by it.
LOST = {
    "function": "the gradient of 'first.weight'",
    "hook": "the gradient of 'first.weight'",
}


@contextmanager
def broken(edit: Callable[[fx.Graph], None]) -> Iterator[None]:
    """Inside, capture makes this fault."""
    module = importlib.import_module("tensoropt_torch.frontend.capture")
    right = module.normalise

    def normalise(graph: fx.Graph) -> None:
        right(graph)
        edit(graph)

    with patch.object(module, "normalise", normalise):
        yield


def made(lost: str = "") -> Everything:
    torch.manual_seed(0)
    return Everything(lost)


def batch(rows: int = 12) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, rows, WIDTH, generator=generator)
    return x, y, torch.randint(8, (rows,), generator=generator)
