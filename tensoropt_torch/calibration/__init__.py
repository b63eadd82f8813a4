"""Costs that come from the running job, and how well they predict it."""

from tensoropt_torch.calibration.correction import corrected
from tensoropt_torch.calibration.finalists import PlanRun, Race, can_race, race
from tensoropt_torch.calibration.fits import scales_of
from tensoropt_torch.calibration.job import MeasureOptions, profiled_task, with_operators
from tensoropt_torch.calibration.kept_comparisons import KeptComparison
from tensoropt_torch.calibration.kept_plans import KeptPlan, KeptPlans
from tensoropt_torch.calibration.profiling import ProfileOptions, profile_hardware
from tensoropt_torch.calibration.random_strategies import ValidationOptions, validate
from tensoropt_torch.calibration.scaling import as_it_took, rescaled, scaled
from tensoropt_torch.calibration.validation import Validation

__all__ = [
    "KeptComparison",
    "KeptPlan",
    "KeptPlans",
    "MeasureOptions",
    "PlanRun",
    "ProfileOptions",
    "Race",
    "Validation",
    "ValidationOptions",
    "as_it_took",
    "can_race",
    "corrected",
    "profile_hardware",
    "profiled_task",
    "race",
    "rescaled",
    "scaled",
    "scales_of",
    "validate",
    "with_operators",
]
