"""Cost frontiers of parallelization strategies for PyTorch models, and the
runtime that executes any point of them."""

from tensoropt_torch.collector import without_collections

with without_collections():
    from tensoropt_torch.api import (
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
    from tensoropt_torch.checkpoint import (
        RandomState,
        full_state_dict,
        load_optimizer,
        save,
        save_pretrained,
    )
    from tensoropt_torch.config import Cluster, list_presets, load_cluster
    from tensoropt_torch.errors import TensorOptError
    from tensoropt_torch.measure import (
        MeasureOptions,
        ProfileOptions,
        ValidationOptions,
    )
    from tensoropt_torch.module import ParallelModule, whole_model
    from tensoropt_torch.padding import pad_together
    from tensoropt_torch.plan import Constraint, Plan, StagedPlan
    from tensoropt_torch.planner.frontier import Frontier
    from tensoropt_torch.planner.optimizer_model import OptimizerModel
    from tensoropt_torch.planner.search_settings import SearchSettings
    from tensoropt_torch.rules import (
        check_rule,
        register_rule,
        unregister_rule,
    )
    from tensoropt_torch.samplers import sampler_arguments
    from tensoropt_torch.simulate import (
        StepSettings,
        fastest_within,
        simulate_frontier,
    )
    from tensoropt_torch.stages import After, Before
    from tensoropt_torch.staging import find_stages
    from tensoropt_torch.steps import clip_grad_norm_, local_step
    from tensoropt_torch.tasks import Example, PlanningOptions
    from tensoropt_torch.values import WeightSource
    from tensoropt_torch.version import __version__

__all__ = [
    "After",
    "Before",
    "Cluster",
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
