"""The table of docs/families.md, made from the JSON file and written into the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


def fill_page(record: Record, page: Path) -> None:
    """Replace the tables in the page."""
