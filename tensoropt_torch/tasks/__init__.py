"""What the public functions are asked for: a model with an example of its global batch
(``Example``), how to plan it (``PlanningOptions``), and the task that both make."""

from tensoropt_torch import rules as _rules  # noqa: F401 (finds those of Python in a model)
from tensoropt_torch.tasks.example import (
    AutocastDType,
    Example,
    ExampleKeywords,
    Model,
    example_of,
    model_of,
)
from tensoropt_torch.tasks.keywords import takes_keywords
from tensoropt_torch.tasks.options import (
    PlanningKeywords,
    PlanningOptions,
    planning_of,
    validation_of,
)
from tensoropt_torch.tasks.predictors import by_memory
from tensoropt_torch.tasks.steps import StepKeywords, step_settings_of
from tensoropt_torch.tasks.task import (
    agreed_task,
    captured_task,
    cluster_of,
    device_count,
    measures,
    profiled_task,
    task_of,
)
from tensoropt_torch.tasks.unused import (
    ADVISES,
    RUNS_NOTHING,
    RUNS_RANDOM_STRATEGIES,
    SEARCHES_NOTHING,
    check_unused,
)

__all__ = [
    "ADVISES",
    "RUNS_NOTHING",
    "RUNS_RANDOM_STRATEGIES",
    "SEARCHES_NOTHING",
    "AutocastDType",
    "Example",
    "ExampleKeywords",
    "Model",
    "PlanningKeywords",
    "PlanningOptions",
    "StepKeywords",
    "agreed_task",
    "by_memory",
    "captured_task",
    "check_unused",
    "cluster_of",
    "device_count",
    "example_of",
    "measures",
    "model_of",
    "planning_of",
    "profiled_task",
    "step_settings_of",
    "takes_keywords",
    "task_of",
    "validation_of",
]
