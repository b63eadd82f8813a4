"""Names of alike layers, which differ in numbers only."""

from __future__ import annotations

import re
from collections.abc import Sequence


def name_pattern(name: str) -> str:
    """Equal for names that differ in numbers only."""
    return re.sub(r"\d+", "*", name)


def folded_name(names: Sequence[str]) -> str:
    """The one name, or what names that differ in numbers have in common."""
    return names[0] if len(names) == 1 else name_pattern(names[0])


def listed_names(names: Sequence[str]) -> str:
    """All of them; of names that count one number up, the ends: ``a.0.b to a.7.b``."""
    if len(names) > 2 and len({name_pattern(name) for name in names}) == 1:
        numbers = ([int(number) for number in re.findall(r"\d+", name)] for name in names)
        changing = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
        first = changing[0][0]
        if changing == [tuple(range(first, first + len(names)))]:
            return f"{names[0]} to {names[-1]}"
    return ", ".join(names)
