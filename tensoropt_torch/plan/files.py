"""Plans as JSON text: the format that is written, and those that are read.

Format 9 has the strategies of a plan and of its variants in ``parts``; in format 8 what a part
has stands beside the settings. Configs are labels, so that files do not change with the configs
that rules give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from tensoropt_torch.config.records import Record, parse_record
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan.parts import PlanPart
from tensoropt_torch.plan.seal import HASHES, check_seal, sealed

FORMAT_VERSION = 9
READ = (8, FORMAT_VERSION)
# Settings that files call otherwise.
_CALLED = {"constraints": "wishes"}

R = TypeVar("R", bound=Record)


def to_text(record: Mapping[str, Any]) -> str:
    """The record of a plan as JSON, with its format and hashes."""
    written = {**record, "settings": _renamed(record["settings"], _CALLED)}
    return json.dumps({"format_version": FORMAT_VERSION, **sealed(written)}, sort_keys=True)


def from_text(kind: type[R], text: str, where: str) -> R:
    """The plan that a text says, which ``to_text`` of some version has written.

    Raises:
        TensorOptError: naming ``where``; it is no plan of a format that is read, or not as it
            was written.
    """
    record = _record(text, where)
    version = record.pop("format_version")
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


def _record(text: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
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
