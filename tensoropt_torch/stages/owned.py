"""Where another graph of a model is cut whose parameters and buffers the stages have already."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.space.rows import loss_node
from tensoropt_torch.stages.places import crossing_bytes
from tensoropt_torch.stages.roles import Roles, changed_by


def owned_cuts(captured: CapturedModel, owned: Sequence[frozenset[str]]) -> list[int]:
    """The numbers of the calls before which the graph is cut, so that each part takes only what
    its stage has, and so that the fewest bytes cross.

    Args:
        owned: by part, in the order of the graph, the first names of the parameters and buffers
            that its stage has; what is in none of them every stage has.

    Raises:
        TensorOptError: there are no such cuts.
    """
    roles = Roles(captured, loss_node(captured))
    bytes_at = crossing_bytes(roles)
    takes = _Takes(captured, roles, frozenset[str]().union(*owned))
    allowed = [
        [
            takes.of(call) <= own and takes.may_be_before(call, owned[part:])
            for part, own in enumerate(owned)
        ]
        for call in roles.calls
    ]
    solid = [not takes.goes_elsewhere(call) for call in roles.calls]
    together = takes.together()
    # By part: the fewest bytes so far if the last call is of it, and the cuts before it.
    best: list[tuple[float, tuple[int, ...]]] = [(0, ()), *[(math.inf, ())] * (len(owned) - 1)]
    has_begun = False  # the first part computes something
    for number in range(len(roles.calls)):
        if solid[number] and has_begun and number not in together:
            begun = [(cost + bytes_at[number], (*cuts, number)) for cost, cuts in best[:-1]]
            best = [best[0], *(min(pair) for pair in zip(best[1:], begun, strict=True))]
        has_begun = has_begun or solid[number]
        best = [
            one if fits else (math.inf, ()) for one, fits in zip(best, allowed[number], strict=True)
        ]
        if all(math.isinf(cost) for cost, _ in best):
            names = sorted(takes.of(roles.calls[number]))
            raise TensorOptError(
                f"this call of the model computes with {', '.join(names)} in another order than "
                "that in which the plan's stages have them; plan without stages (find_strategy) "
                "for such calls"
            )
    cost, cuts = best[-1]
    if math.isinf(cost):
        raise TensorOptError(
            f"this call of the model computes too little for the {len(owned)} parts of the plan; "
            "plan without stages (find_strategy) for such calls"
        )
    return list(cuts)


class _Takes:
    """The parameters and buffers of stages that calls compute with, by their first names."""

    def __init__(self, captured: CapturedModel, roles: Roles, known: frozenset[str]) -> None:
        sources = captured.sources
        self._roles = roles
        self._names = {
            source.placeholder: next(name for name in source.names if name in known)
            for source in sources
            if source.kind in ("parameter", "constant") and not known.isdisjoint(source.names)
        }
        numbers = {node: number for number, node in enumerate(roles.calls)}
        # What depends on no input is computed where it is first used.
        self._first_user = {
            node: min((numbers[user] for user in node.users if user in numbers), default=-1)
            for node in roles.before_batch
        }
        self._found: dict[fx.Node, frozenset[str]] = {}
        self._kept: dict[fx.Node, set[str]] = {}  # buffers that a value is written into
        for call in filter(self._is_write, roles.calls):
            memory, value = call.args[:2]
            if memory in self._names and isinstance(value, fx.Node):
                self._kept.setdefault(value, set()).add(self._names[memory])

    def goes_elsewhere(self, call: fx.Node) -> bool:
        """Whether a call is made where its value, or the buffer that it writes, is used."""
        roles = self._roles
        return self._is_write(call) or call in roles.again or call in roles.before_batch

    def may_be_before(self, call: fx.Node, rest: Sequence[frozenset[str]]) -> bool:
        """Whether a call may be in the first of these parts, the last ones: a buffer that its value
        is written into is in one of them."""
        return self.goes_elsewhere(call) or self._kept.get(call, set()) <= frozenset().union(*rest)

    def together(self) -> set[int]:
        """The numbers of calls that are in the part of the one before them: all that use a buffer
        that changes are in one, with what its new value is made of after that."""
        numbers = {call: number for number, call in enumerate(self._roles.calls)}
        found: set[int] = set()
        for memory in self._roles.changed:
            users = [user for user in memory.users if user in numbers]
            uses = [numbers[user] for user in users if not self.goes_elsewhere(user)]
            values = [user.args[1] for user in users if self._is_write(user)]
            if uses:
                last = max([*uses, *(numbers[v] for v in values if v in numbers)])
                found.update(range(min(uses) + 1, last + 1))
        return found

    @staticmethod
    def _is_write(call: fx.Node) -> bool:
        """Whether a call writes a value into a buffer that others use."""
        return call.target is torch.ops.aten.copy_.default and any(
            len(memory.users) > 1 for memory in changed_by(call)
        )

    def of(self, call: fx.Node) -> frozenset[str]:
        """Of a call, with those that its stage makes for it."""
        return frozenset() if self.goes_elsewhere(call) else self._closure(call)

    def _closure(self, call: fx.Node) -> frozenset[str]:
        if call not in self._found:
            found = {self._names[node] for node in call.all_input_nodes if node in self._names}
            for node in call.all_input_nodes:
                if node in self._roles.again or self._is_first_user(node, call):
                    found |= self._closure(node)
            self._found[call] = frozenset(found)
        return self._found[call]

    def _is_first_user(self, node: fx.Node, call: fx.Node) -> bool:
        return node in self._first_user and self._roles.calls[self._first_user[node]] is call
