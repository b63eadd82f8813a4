"""Plans as JSON text: the format that is written, and those that are read.

Format 9 has the strategies of a plan and of its variants in ``parts``; in format 8 what a part
has stands beside the settings. Format 10 is of plans in stages, whose parts have a plan each.
Configs are labels, so that files do not change with the configs that rules give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from tensoropt_torch.config.records import Record, parse_record
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan.parts import PlanPart
from tensoropt_torch.plan.seal import HASHES, check_seal, sealed

FORMAT_VERSION = 9
READ = (8, FORMAT_VERSION)
STAGED_VERSION = 10  # of plans in stages
# Settings that files call otherwise.
_CALLED = {"constraints": "wishes"}

R = TypeVar("R", bound=Record)


def write_plan(path: str | Path, text: str) -> None:
    """Raises TensorOptError if the file cannot be written."""
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise TensorOptError(f"plan file '{path}' cannot be written: {error}") from error


def read_plan(path: str | Path) -> str:
    """Raises TensorOptError if the file cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TensorOptError(
            f"plan file '{path}' cannot be read: {error}; write one with Plan.save"
        ) from error


def to_text(record: Mapping[str, Any]) -> str:
    """The record of a plan as JSON, with its format and hashes."""
    return _text(_written(record), FORMAT_VERSION)


def staged_to_text(record: Mapping[str, Any]) -> str:
    """The record of a plan in stages as JSON, with its format and hashes."""
    parts = [{**part, "plan": _written(part["plan"])} for part in record["parts"]]
    return _text({**record, "parts": parts}, STAGED_VERSION)


def is_staged(text: str) -> bool:
    """Whether a text is of a plan in stages."""
    try:
        record = json.loads(text)
    except json.JSONDecodeError:
        return False
    return isinstance(record, dict) and record.get("format_version") == STAGED_VERSION


def _text(record: Mapping[str, Any], version: int) -> str:
    return json.dumps({"format_version": version, **sealed(record)}, sort_keys=True)


def _written(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "settings": _renamed(record["settings"], _CALLED)}


def from_text(kind: type[R], text: str, where: str) -> R:
    """The plan that a text says, which ``to_text`` of some version has written.

    Raises:
        TensorOptError: naming ``where``; it is no plan of a format that is read, or not as it
            was written.
    """
    record = _record(text, where)
    version = record.pop("format_version")
    if version == STAGED_VERSION:
        raise TensorOptError(f"{where} is a plan in stages; read it with StagedPlan.load")
    if version not in READ:
        raise TensorOptError(
            f"{where} has format version {version}, this version of tensoropt_torch reads "
            f"{' and '.join(map(str, READ))}; plan again"
        )
    hashes = record.pop(HASHES, None)  # files of the first versions have none
    plan = parse_record(kind, _read(_of_format_8(record) if version == 8 else record), where)
    if hashes is not None:
        check_seal(record, hashes, where)
    return plan


def staged_from_text(kind: type[R], text: str, where: str) -> R:
    """The plan in stages that a text says, which ``staged_to_text`` has written.

    Raises:
        TensorOptError: as ``from_text``.
    """
    record = _record(text, where)
    version = record.pop("format_version")
    if version != STAGED_VERSION:
        raise TensorOptError(
            f"{where} has format version {version}, that of plans in stages is {STAGED_VERSION}; "
            "read plans without stages with Plan.load"
        )
    hashes = record.pop(HASHES, None)
    read = {**record, "parts": [_read_part(part) for part in record.get("parts", ())]}
    plan = parse_record(kind, read, where)
    check_seal(record, hashes, where)
    return plan


def _read_part(part: Any) -> Any:
    is_whole = isinstance(part, Mapping) and isinstance(part.get("plan"), Mapping)
    return {**part, "plan": _read(part["plan"])} if is_whole else part


def _record(text: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # deep nesting, long numbers
        raise _no_plan(where, f"it is no JSON ({error})") from error
    if not isinstance(record, dict) or "format_version" not in record:
        raise _no_plan(where, "it has no format_version")
    return record


def _no_plan(where: str, why: str) -> TensorOptError:
    return TensorOptError(f"{where} is not a plan: {why}; write one with Plan.save")


def _read(record: Mapping[str, Any]) -> dict[str, Any]:
    """With the names of fields as keys."""
    settings = record.get("settings")
    if not isinstance(settings, Mapping):
        return dict(record)
    names = {key: name for name, key in _CALLED.items()}
    return {**record, "settings": _renamed(settings, names)}


def _renamed(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in record.items()}


def _of_format_8(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of format 8 as one of format 9."""
    plan = _in_parts(record)
    if isinstance(plan.get("variants"), list):
        plan["variants"] = [
            _in_parts(variant) if isinstance(variant, Mapping) else variant
            for variant in plan["variants"]
        ]
    return plan


def _in_parts(record: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(PlanPart)}
    part = {name: value for name, value in record.items() if name in names}
    rest = {name: value for name, value in record.items() if name not in names}
    return {"parts": [part], **rest}
