"""The hashes by which a plan file tells what was changed in it since it was written.

What a plan says depends on each other: a strategy with other names or costs is of no search. So
none of it may be changed by hand; other strategies are asked for by constraints. Files that say the
same in another form, such as with other spaces or ``1`` for ``1.0``, are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tensoropt_torch.errors import TensorOptError

HASHES = "hashes"  # their key in the file
# Of these each entry has a hash of its own, be they a table or a list of tables.
_IN_DETAIL = ("settings", "parts", "plan", "choices")
_WAY_OUT = (
    "what a plan says depends on each other, so plan again, with constraints (pin, forbid) for a "
    "strategy of your own"
)


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a plan with its hashes."""
    return {**record, HASHES: dict(_hashes(record))}


def check_seal(record: Mapping[str, Any], hashes: Any, where: str) -> None:
    """Raises TensorOptError if the record is not the one that the hashes are of; says which parts
    differ."""
    if not isinstance(hashes, Mapping):
        raise TensorOptError(f"{where}: {HASHES} = {hashes!r} is not allowed; {_WAY_OUT}")
    found = dict(_hashes(record))
    changed = sorted(name for name in {*found, *hashes} if found.get(name) != hashes.get(name))
    if changed:
        raise TensorOptError(
            f"{where} was changed by hand since it was written: {', '.join(changed)}; {_WAY_OUT}"
        )


def _hashes(record: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, str]]:
    for key, value in record.items():
        name = f"{at}{key}"
        if key in _IN_DETAIL and isinstance(value, Mapping):
            yield from _hashes(value, f"{name}.")
        elif key in _IN_DETAIL and isinstance(value, (list, tuple)):
            for index, one in enumerate(value):
                yield from _hashes(one, f"{name}[{index}].")
        else:
            yield name, _hash(value)


def _hash(value: Any) -> str:
    text = json.dumps(_normal(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _normal(value: Any) -> Any:
    """Programs that rewrite JSON keep numbers, but not their kinds; lists and tuples are one."""
    if isinstance(value, Mapping):
        return {str(key): _normal(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_normal(part) for part in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else value
