"""Options that a strategy space takes as the user has given them.

What is asked for (``PlanningOptions``), the task, and the settings of a plan have these fields from
here, and the C++ core has fields of the same names (``csrc/space/options.h``): an option more is a
field more here and there. What is worked out of options before, such as a default that depends on
the number of devices, is a field of each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict

Space = Literal["ordered", "full"]
ReduceDType = Literal["parameter", "compute"]

_HELP = "help"


def flag(what: str) -> Mapping[str, str]:
    """Metadata of a field that is an argument of the command line as well: its help."""
    return {_HELP: what}


def help_of(metadata: Mapping[str, str]) -> str | None:
    """What ``flag`` has said; None: there is no such argument."""
    return metadata.get(_HELP)


@dataclass(frozen=True, kw_only=True)
class SpaceOptions:
    """Which strategies there are of a model, as far as options say it by themselves.

    Attributes:
        space: ``"ordered"``, or ``"full"`` which tells axes of one level apart.
        split_spatial: spatial dims of convolutions and pooling may be split.
        reduce_dtype: of sums of gradients over devices, that of the parameter or of what is
            computed with it (docs/precision.md).
        compiled: what ranks compute will be compiled (``parallelize(..., compile=True)``):
            element-wise operators and normalisations that follow each other are one kernel
            (docs/costs.md).
    """

    space: Space = field(default="ordered", metadata=flag("full: tell axes of one level apart"))
    split_spatial: bool = field(
        default=False, metadata=flag("may split spatial dims of convolutions")
    )
    reduce_dtype: ReduceDType = field(
        default="parameter",
        metadata=flag(
            "sum gradients in the dtype of the parameter or in that of its use under autocast"
        ),
    )
    compiled: bool = field(
        default=False, metadata=flag("predict steps that are compiled (compile=True)")
    )


class SpaceKeywords(TypedDict, total=False):
    """The options of ``SpaceOptions`` as keywords."""

    space: Space
    split_spatial: bool
    reduce_dtype: ReduceDType
    compiled: bool


def handed_to_core(options: SpaceOptions) -> dict[str, Any]:
    """Options by name, for ``_C.SpaceOptions``, which refuses names that it does not know."""
    return {part.name: getattr(options, part.name) for part in fields(SpaceOptions)}
