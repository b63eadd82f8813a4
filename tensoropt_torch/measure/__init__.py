"""Costs that come from the running job, and how well they predict it."""

from tensoropt_torch.measure.correction import corrected
from tensoropt_torch.measure.fits import scales_of
from tensoropt_torch.measure.job_costs import MeasureOptions, profiled_task, with_operators
from tensoropt_torch.measure.kept.comparisons import KeptComparison
from tensoropt_torch.measure.kept.plans import KeptPlans
from tensoropt_torch.measure.profiling import ProfileOptions, profile_hardware
from tensoropt_torch.measure.runs.race import PlanRun, Race, can_race, race
from tensoropt_torch.measure.runs.random_strategies import ValidationOptions, validate
from tensoropt_torch.measure.runs.validation import Validation
from tensoropt_torch.measure.scaling import as_it_took, rescaled, scaled

__all__ = [
    "KeptComparison",
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
