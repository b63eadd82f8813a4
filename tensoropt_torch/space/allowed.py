"""Which configs of a strategy space a user's constraints leave."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.space.constraints import WHOLE, Constraint
from tensoropt_torch.space.settings import Settings

Mask = list[bool]

_SHOWN = 6  # names or configs in a message


def allowed_configs(
    space: _C.SearchSpace,
    captured: CapturedModel,
    settings: Settings,
    constraints: Sequence[Constraint],
) -> list[Mask]:
    """For each space node which of its configs all ``constraints`` allow.

    Raises:
        TensorOptError: a constraint matches nothing, cannot be met, or contradicts another one at
            the same parameter or operator.
    """
    nodes = _nodes(space, captured)
    if not settings.mesh_axes:
        constraints = ()  # one device splits nothing
    masks = [[True] * len(node.configs) for node in nodes]
    given: list[list[Constraint]] = [[] for _ in nodes]
    for constraint in constraints:
        for index in _matches(constraint, nodes, settings):
            node = nodes[index]
            masks[index] = [
                before and constraint.allows(entries)
                for before, entries in zip(masks[index], node.configs, strict=True)
            ]
            if not any(masks[index]):
                raise _contradiction(constraint, given[index], node)
            given[index].append(constraint)
    return masks


def check_together(space: _C.SearchSpace, captured: CapturedModel, settings: Settings) -> None:
    """Raises TensorOptError if no strategy meets all constraints of the settings, though each node
    has configs left; names constraints none of which can be left out for that."""

    def blocked_by(constraints: Sequence[Constraint]) -> str | None:
        masks = allowed_configs(space, captured, settings, constraints)
        blocked: str | None = space.blocked_node(masks)
        return blocked

    blocked = blocked_by(settings.constraints) if settings.constraints else None
    if blocked is None:
        return
    needed = list(settings.constraints)
    for constraint in settings.constraints:
        fewer = [other for other in needed if other is not constraint]
        if blocked_by(fewer) is not None:
            needed = fewer
    names = " and ".join(map(str, needed))
    verb = "cannot be met" if len(needed) == 1 else "cannot be met together"
    raise TensorOptError(
        f"{names} {verb}: no config of '{blocked}' is left that can be combined with those of its "
        "neighbours; drop one of them, or pin fewer names"
    )


@dataclass(frozen=True)
class _Node:
    """A space node: its names, what it is, and the entries of each config by mesh axis."""

    names: tuple[str, ...]
    kind: str  # parameter, input or operator; empty: no constraint can name it
    target: str
    shape: tuple[int, ...]
    configs: tuple[tuple[str, ...], ...]

    @property
    def title(self) -> str:
        what = f" of shape {list(self.shape)}" if self.kind == "parameter" else f" ({self.target})"
        return f"{self.kind} '{self.names[0]}'{what}"

    @property
    def dims(self) -> list[str]:
        """What an operator may be split by, besides nothing."""
        found = {entry for entries in self.configs for entry in entries}
        return sorted(entry for entry in found if entry != "-" and not entry.startswith("+"))


def _nodes(space: _C.SearchSpace, captured: CapturedModel) -> list[_Node]:
    sources = {source.names[0]: source for source in captured.sources}
    found = []
    for row in space.nodes():
        name, target = row.name, row.target
        labels = row.splits
        configs = tuple(tuple(label.split(",")) if label else () for label in labels)
        source = sources.get(name) if not target else None
        if source is not None:
            shape = tuple(source.placeholder.meta["val"].shape)
            if source.blocks is not None:
                # A part of each block of a dim is a part of it as well.
                stored = (source.blocks.label(label).split(",") for label in labels)
                configs = tuple(tuple(s.partition("/")[0] for s in entries) for entries in stored)
                shape = source.blocks.together(shape)
            kind: str = source.kind if source.kind in ("parameter", "input") else ""
            found.append(_Node(source.names, kind, "", shape, configs))
            continue
        kind = "operator" if target and target != "relay" else ""
        module = name.rpartition(".")[0]
        names = (name, module) if kind and module else (name,)
        found.append(_Node(names, kind, target, (), configs))
    return found


def _matches(constraint: Constraint, nodes: Sequence[_Node], settings: Settings) -> Iterator[int]:
    """The nodes that a constraint is about.

    Raises:
        TensorOptError: there are none, or one cannot be split so.
    """
    named = [i for i, node in enumerate(nodes) if _is_named(constraint, node)]
    if not named:
        raise _nothing_matches(constraint, nodes)
    about = [i for i in named if _concerns(constraint, nodes[i])]
    if not about:
        raise _wrong_kind(constraint, [nodes[i] for i in named])
    for index in about:
        if not any(map(constraint.allows, nodes[index].configs)):
            raise _impossible(constraint, nodes[index], settings)
        yield index


def _is_named(constraint: Constraint, node: _Node) -> bool:
    return bool(node.kind) and any(fnmatchcase(name, constraint.pattern) for name in node.names)


def _concerns(constraint: Constraint, node: _Node) -> bool:
    """Operators without the dim that is named are left alone."""
    if node.kind == "parameter":
        return constraint.of_parameters
    if node.kind != "operator" or not constraint.of_operators:
        return False
    known = {*node.dims, WHOLE, "*", "-"}
    terms = constraint.terms
    return (
        all(t in known for t in terms)
        if constraint.kind == "pin"
        else any(t in known for t in terms)
    )


def _contradiction(
    constraint: Constraint, others: Sequence[Constraint], node: _Node
) -> TensorOptError:
    """``others`` together with the constraint leave a node no config."""
    alone = [
        other
        for other in others
        if not any(constraint.allows(entries) and other.allows(entries) for entries in node.configs)
    ]
    names = " and ".join(map(str, alone[:1] or others))
    return TensorOptError(
        f"{constraint} contradicts {names} at {node.title}: nothing is left; drop one of them, or "
        "give patterns that do not overlap"
    )


def _nothing_matches(constraint: Constraint, nodes: Sequence[_Node]) -> TensorOptError:
    known = list(dict.fromkeys(name for node in nodes if node.kind for name in node.names))
    near = difflib.get_close_matches(constraint.pattern, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return TensorOptError(
        f"{constraint} matches no parameter, operator or module; {hint}give a name of "
        "model.named_parameters(), or of an operator or its module as 'tensoropt plan --details' "
        "prints them; * stands for any text"
    )


def _wrong_kind(constraint: Constraint, named: Sequence[_Node]) -> TensorOptError:
    kinds = {node.kind for node in named}
    if kinds == {"input"}:
        return TensorOptError(
            f"{constraint} matches input '{named[0].names[0]}', whose layout follows from "
            "inputs='replicated' or 'sharded'; give inputs instead"
        )
    if "operator" not in kinds or (constraint.of_parameters and "parameter" not in kinds):
        what, allowed = ("parameters", "S0, R") if "parameter" in kinds else ("operators", "")
        text = f"; allowed: {allowed}, ..., whole" if allowed else f"; allowed: {_dims(named)}"
        return TensorOptError(f"{constraint} matches {what} only: {_titles(named)}{text}")
    operators = [node for node in named if node.kind == "operator"]
    return TensorOptError(
        f"{constraint}: no operator that matches has such dims to split; "
        f"allowed: {_dims(operators)}"
    )


def _titles(nodes: Sequence[_Node]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(node.title for node in nodes[:_SHOWN]) + more


def _dims(operators: Sequence[_Node]) -> str:
    return "; ".join(
        f"{', '.join([*node.dims, WHOLE])} for {node.title}" for node in operators[:_SHOWN]
    )


def _impossible(constraint: Constraint, node: _Node, settings: Settings) -> TensorOptError:
    labels = [",".join(entries) for entries in node.configs]
    near = difflib.get_close_matches(constraint.value, labels, n=_SHOWN, cutoff=0.0)
    mesh = " x ".join(str(size) for size, _ in settings.mesh_axes)
    return TensorOptError(
        f"{constraint} cannot be met for {node.title} on {settings.num_devices} devices ({mesh}): "
        f"{_reason(constraint, node, settings)}; allowed, nearest first: {' | '.join(near)}"
    )


def _reason(constraint: Constraint, node: _Node, settings: Settings) -> str:
    sizes = [size for size, _ in settings.mesh_axes]
    terms = constraint.terms
    if constraint.kind == "forbid":
        return "nothing else is left for it"
    if len(terms) > 1 and len(terms) != len(sizes):
        return f"there are {len(sizes)} mesh axes, not {len(terms)}; give one split for each"
    entries = terms if len(terms) > 1 else terms * len(sizes)
    if node.kind == "parameter":
        for dim in sorted({int(term[1:]) for term in entries if term.startswith("S")}):
            if dim >= len(node.shape):
                return f"it has {len(node.shape)} dims, there is no dim {dim}"
            parts = math.prod(
                size for size, term in zip(sizes, entries, strict=True) if term == f"S{dim}"
            )
            if node.shape[dim] % parts != 0:
                return (
                    f"{parts} does not divide dim {dim} of size {node.shape[dim]}, and here no "
                    "operator takes parts that differ, or one would be empty"
                )
    same = [",".join(c) for c in node.configs if sorted(c) == sorted(entries)]
    if same:
        return f"on alike mesh axes that is written '{same[0]}' (space='full' tells orders apart)"
    return (
        "it is not among the configs that are considered (a size that does not divide, or more "
        f"than max_configs={settings.max_configs})"
    )
