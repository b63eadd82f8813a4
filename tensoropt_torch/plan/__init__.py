"""A strategy of a model on a mesh as data, and how it is kept in files."""

from tensoropt_torch.plan.parts import PlanPart, VariantStrategy
from tensoropt_torch.plan.plan import Plan
from tensoropt_torch.plan.staged import StagedPlan, StagePlan, any_of_json, load_any
from tensoropt_torch.space.choices import Choices
from tensoropt_torch.space.constraints import (
    Constraint,
    Pins,
    StagePins,
    constraints_of,
    stage_pins_of,
)
from tensoropt_torch.space.options import ReduceDType
from tensoropt_torch.space.settings import (
    Guarantee,
    InputMode,
    InputShares,
    MeasuredCurve,
    OpRecord,
    Settings,
    StateDType,
    default_max_configs,
)

__all__ = [
    "Choices",
    "Constraint",
    "Guarantee",
    "InputMode",
    "InputShares",
    "MeasuredCurve",
    "OpRecord",
    "Pins",
    "Plan",
    "PlanPart",
    "ReduceDType",
    "Settings",
    "StagePins",
    "StagePlan",
    "StagedPlan",
    "StateDType",
    "VariantStrategy",
    "any_of_json",
    "constraints_of",
    "default_max_configs",
    "load_any",
    "stage_pins_of",
]
