"""Where in the graph of a rank the ranks must have agreed on the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tensoropt_torch.runtime.agreement import confirm_call
from tensoropt_torch.runtime.library import OPS
from tensoropt_torch.runtime.random import agree_on_random_state

RESHARDS = frozenset(
    {
        OPS.reshard.default,
        OPS.reshard_parameter.default,
        OPS.begin_value.default,
        OPS.begin_gathers.default,
    }
)
FORWARD_GROUPS = 2  # the argument of these that counts in forward


class Confirmation:
    """Writes ``confirm_call`` into a graph.

    ::

        confirmation = Confirmation(group_name)
        ...                     # nodes take their groups from confirmation.group_name
        confirmation.write(graph)
    """

    def __init__(self, group_name: Callable[[int], str]) -> None:
        self._group_name = group_name
        self._groups: set[str] = set()

    def group_name(self, axes: int) -> str:
        """The group of these mesh axes, which a node will use; none for no axes."""
        name = self._group_name(axes)
        if axes:
            self._groups.add(name)
        return name

    def write(self, graph: fx.Graph) -> None:
        """Before the first node that is seen outside of the rank, or, if there is none, where
        the graph ends."""
        node = next(node for node in graph.nodes if self._is_seen_outside(node))
        with graph.inserting_before(node):
            graph.call_function(confirm_call)

    def _is_seen_outside(self, node: fx.Node) -> bool:
        if node.op == "output" or node.target is agree_on_random_state:
            return True
        if node.op != "call_function":
            return False
        return self._communicates(node) or _changes_something(node)

    def _communicates(self, node: fx.Node) -> bool:
        if node.target in RESHARDS:
            return bool(node.args[FORWARD_GROUPS])
        if node.target is OPS.reshard_gradients.default:
            return False  # in forward
        return any(name in self._groups for name in _strings(node))


def _strings(node: fx.Node) -> Iterator[str]:
    leaves: list[Any] = pytree.tree_leaves((node.args, node.kwargs))
    return (leaf for leaf in leaves if isinstance(leaf, str))


def _changes_something(node: fx.Node) -> bool:
    """Whether it writes to what it is given. ATen's batch normalisation does, though its
    schema does not say so."""
    if not isinstance(node.target, OpOverload):
        return False
    schema = node.target._schema
    return schema.is_mutable or any(
        argument.name == "running_mean" for argument in schema.arguments
    )
