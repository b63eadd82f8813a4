from .correction import corrected
from .fits import scales_of
from .job_costs import profiled_task, with_operators
from .kept.comparisons import KeptComparison
from .kept.plans import KeptPlans, plain_options
from .options import MeasureOptions
from .profiling import ProfileOptions, profile_hardware
from .runs.race import PlanRun, Race, can_race, race
from .runs.random_strategies import validate
from .runs.validation import Validation
from .runs.validation_options import ValidationOptions
from .scaling import as_it_took, rescaled, scaled
from .taken import taken

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
    "plain_options",
    "profile_hardware",
    "profiled_task",
    "race",
    "rescaled",
    "scaled",
    "scales_of",
    "taken",
    "validate",
    "with_operators",
]
