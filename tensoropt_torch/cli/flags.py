"""Arguments that follow from fields of ``PlanningOptions``: those whose metadata say what they are
for (``space/options.py``)."""

from __future__ import annotations

import argparse
from dataclasses import Field, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tensoropt_torch.space.options import help_of
from tensoropt_torch.tasks import PlanningOptions


def add_flags(parser: argparse.ArgumentParser) -> None:
    """An argument for each such field, by its type and with its default."""
    types = get_type_hints(PlanningOptions)
    for part in _fields():
        name = "--" + part.name.replace("_", "-")
        how = _kind(types[part.name])
        parser.add_argument(name, default=part.default, help=help_of(part.metadata), **how)


def flags_of(options: argparse.Namespace) -> dict[str, Any]:
    """What the arguments say, by the names of the fields."""
    return {part.name: getattr(options, part.name) for part in _fields()}


def _fields() -> list[Field[Any]]:
    return [part for part in fields(PlanningOptions) if help_of(part.metadata) is not None]


def _kind(annotation: Any) -> dict[str, Any]:
    """How such a value is read."""
    if annotation is bool:
        return {"action": "store_true"}
    if set(get_args(annotation)) == {bool, NoneType}:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(annotation) is Literal:
        return {"choices": get_args(annotation)}
    return {"type": annotation}
