from .details import details_of
from .diff import PlanDiff, diff_of_plans
from .facts import as_html, in_one_line, origin_of
from .stages import (
    COLUMNS,
    ComparedStages,
    details_of_stages,
    diff_of_stages,
    stage_rows,
    stages_in_words,
)

__all__ = [
    "COLUMNS",
    "ComparedStages",
    "PlanDiff",
    "as_html",
    "details_of",
    "details_of_stages",
    "diff_of_plans",
    "diff_of_stages",
    "in_one_line",
    "origin_of",
    "stage_rows",
    "stages_in_words",
]
