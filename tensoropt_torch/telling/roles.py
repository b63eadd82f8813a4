"""How the layers of a model are split, in a few lines: modules that are split alike share one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensoropt_torch.layer_names import name_pattern
from tensoropt_torch.telling.work import parts_of

_LEAST_NAMED = 0.005  # of all work, of alike modules without parameters


@dataclass(frozen=True)
class Role:
    """Modules that are split alike.

    Attributes:
        names: of the modules, with ``*`` for numbers that differ, and how often each is there.
        parts: into how many parts the batch, features and positions of their work are cut.
        layout: of most of their parameters, such as ``S0,S1,R``; empty: they have none.
        share: of the FLOPs of all operators.
    """

    names: Mapping[str, int]
    parts: Mapping[str, int]
    layout: str
    share: float

    def work_in_words(self) -> str:
        """E.g. ``batch over 4, features over 2``."""
        cuts = ", ".join(f"{name} over {count}" for name, count in self.parts.items())
        return cuts or "whole on each device"

    def storage_in_words(self, sizes: Sequence[int]) -> str:
        """E.g. ``columns 4 ways, rows 2 ways``, on a mesh with axes of these sizes."""
        if not self.layout:
            return "none"
        ways: dict[str, int] = {}
        for entry, size in zip(self.layout.split(","), sizes, strict=False):
            if entry.startswith("S"):
                ways[entry] = ways.get(entry, 1) * size
        found = ", ".join(f"{_dim(entry)} {count} ways" for entry, count in ways.items())
        return found or "whole on each device"


def _dim(entry: str) -> str:
    return {"S0": "rows", "S1": "columns"}.get(entry, f"dim {entry[1:]}")


@dataclass(frozen=True)
class _Module:
    """Of one module: what splits most of its work, by mesh axis, with its FLOPs, and the layout of
    most bytes of its parameters."""

    flops: float = 0.0
    most: float = -1.0
    splits: tuple[str, ...] = ()
    num_bytes: float = -1.0
    layout: str = ""


def roles_of(
    work: Iterable[tuple[str, Sequence[str], float]],
    stored: Iterable[tuple[str, str, float]],
    sizes: Sequence[int],
) -> tuple[Role, ...]:
    """The role with the most work first.

    Args:
        work: of operators, the name, what splits it by mesh axis, and its FLOPs.
        stored: of parameters, the name, the layout and the bytes.
        sizes: of the mesh axes.
    """
    modules: defaultdict[str, _Module] = defaultdict(_Module)
    for name, layout, num_bytes in stored:
        one = modules[_module(name)]
        if num_bytes > one.num_bytes:
            modules[_module(name)] = replace(one, num_bytes=num_bytes, layout=layout)
    for name, splits, flops in work:
        one = modules[_module(name)]
        one = replace(one, flops=one.flops + flops)
        if flops > one.most:
            one = replace(one, most=flops, splits=tuple(splits))
        modules[_module(name)] = one
    whole = max(1.0, sum(one.flops for one in modules.values()))
    groups: defaultdict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    alike: defaultdict[str, float] = defaultdict(float)
    for name, one in modules.items():
        alike[name_pattern(name)] += one.flops
    for name, one in modules.items():
        if one.layout or alike[name_pattern(name)] >= _LEAST_NAMED * whole:
            groups[tuple(sorted(one.splits)), one.layout].append(name)
    found = [_role(names, modules, whole, sizes) for names in groups.values()]
    return tuple(sorted(found, key=lambda role: -role.share))


def _role(
    names: Sequence[str], modules: Mapping[str, _Module], whole: float, sizes: Sequence[int]
) -> Role:
    counts: dict[str, int] = {}
    for name in names:
        counts[name_pattern(name)] = counts.get(name_pattern(name), 0) + 1
    first = modules[names[0]]
    parts = dict(parts_of(first.splits, sizes)) if first.splits else {}
    share = sum(modules[name].flops for name in names) / whole
    return Role(counts, parts, first.layout, share)


def _module(name: str) -> str:
    """That an operator or a parameter is of."""
    return name.rpartition(".")[0] or name
