"""Costs that come from the running job, and how well they predict it."""

from tensoropt_torch.calibration.finalists import fastest_of
from tensoropt_torch.calibration.job import MeasureOptions, measured_task
from tensoropt_torch.calibration.profiling import ProfileOptions, profile_hardware
from tensoropt_torch.calibration.random_strategies import ValidationOptions, validate
from tensoropt_torch.calibration.scaling import rescaled, scaled, scales_of
from tensoropt_torch.calibration.validation import Validation

__all__ = [
    "MeasureOptions",
    "ProfileOptions",
    "Validation",
    "ValidationOptions",
    "fastest_of",
    "measured_task",
    "profile_hardware",
    "rescaled",
    "scaled",
    "scales_of",
    "validate",
]
