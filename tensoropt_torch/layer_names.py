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
