"""A strategy of a model on a mesh as data, and how it is kept in files."""

from tensoropt_torch.plan.parts import PlanPart, VariantStrategy
from tensoropt_torch.plan.plan import Plan
from tensoropt_torch.space.choices import Choices
from tensoropt_torch.space.options import ReduceDType
from tensoropt_torch.space.settings import (
    Guarantee,
    InputMode,
    MeasuredCurve,
    OpRecord,
    Settings,
    StateDType,
    default_max_configs,
)
from tensoropt_torch.space.wishes import Pins, Wish, wishes_of

__all__ = [
    "Choices",
    "Guarantee",
    "InputMode",
    "MeasuredCurve",
    "OpRecord",
    "Pins",
    "Plan",
    "PlanPart",
    "ReduceDType",
    "Settings",
    "StateDType",
    "VariantStrategy",
    "Wish",
    "default_max_configs",
    "wishes_of",
]
