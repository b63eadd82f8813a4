from .api import (
    advise,
    auto_parallel,
    compare,
    explain,
    find_frontier,
    find_strategy,
    find_tradeoffs,
    init,
    parallelize,
    profile,
    profile_hardware,
    simulate_memory,
    validate,
)
from .checkpoint import (
    Checkpoints,
    RandomState,
    full_optimizer_state_dict,
    full_state_dict,
    load_optimizer,
    save,
    save_pretrained,
)
from .config import Cluster, list_presets, load_cluster
from .emit.compiler import CompileOptions
from .errors import TensorOptError
from .measure import MeasureOptions, ProfileOptions, ValidationOptions
from .module import ParallelModule, whole_model
from .padding import pad_together
from .plan import Constraint, Plan, StagedPlan
from .planner.frontier import Frontier
from .planner.optimizer_model import OptimizerModel
from .planner.search_settings import SearchSettings
from .rules import check_rule, register_rule, unregister_rule
from .samplers import sampler_arguments
from .simulate import StepSettings, fastest_within, simulate_frontier
from .stages import After, Before
from .staging import find_stages
from .steps import clip_grad_norm_, local_step
from .tasks import Example, PlanningOptions
from .values import WeightSource
from .version import __version__

__all__ = [
    "After",
    "Before",
    "Checkpoints",
    "Cluster",
    "CompileOptions",
    "Constraint",
    "Example",
    "Frontier",
    "MeasureOptions",
    "OptimizerModel",
    "ParallelModule",
    "Plan",
    "PlanningOptions",
    "ProfileOptions",
    "RandomState",
    "SearchSettings",
    "StagedPlan",
    "StepSettings",
    "TensorOptError",
    "ValidationOptions",
    "WeightSource",
    "__version__",
    "advise",
    "auto_parallel",
    "check_rule",
    "clip_grad_norm_",
    "compare",
    "explain",
    "fastest_within",
    "find_frontier",
    "find_stages",
    "find_strategy",
    "find_tradeoffs",
    "full_optimizer_state_dict",
    "full_state_dict",
    "init",
    "list_presets",
    "load_cluster",
    "load_optimizer",
    "local_step",
    "pad_together",
    "parallelize",
    "profile",
    "profile_hardware",
    "register_rule",
    "sampler_arguments",
    "save",
    "save_pretrained",
    "simulate_frontier",
    "simulate_memory",
    "unregister_rule",
    "validate",
    "whole_model",
]
