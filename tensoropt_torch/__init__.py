"""Cost frontiers of parallelization strategies for PyTorch models, and the
runtime that executes any point of them."""

from tensoropt_torch.api import (
    PlanningOptions,
    auto_parallel,
    compare,
    find_frontier,
    find_strategy,
    find_tradeoffs,
    init,
    parallelize,
    profile,
    simulate_memory,
)
from tensoropt_torch.config import Cluster, list_presets, load_cluster
from tensoropt_torch.emit import ParallelModule, WeightSource
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import Baseline, Comparison
from tensoropt_torch.planner.frontier import Frontier, FrontierPoint
from tensoropt_torch.planner.options import ProfileRow, SearchSettings
from tensoropt_torch.planner.tradeoffs import TradeoffPoint, Tradeoffs
from tensoropt_torch.simulate import (
    MemoryProfile,
    SimulatedPoint,
    StepSettings,
    fastest_within,
    simulate_frontier,
)

__all__ = [
    "Baseline",
    "Cluster",
    "Comparison",
    "Frontier",
    "FrontierPoint",
    "MemoryProfile",
    "ParallelModule",
    "Plan",
    "PlanningOptions",
    "ProfileRow",
    "SearchSettings",
    "SimulatedPoint",
    "StepSettings",
    "TensorOptError",
    "TradeoffPoint",
    "Tradeoffs",
    "WeightSource",
    "auto_parallel",
    "compare",
    "fastest_within",
    "find_frontier",
    "find_strategy",
    "find_tradeoffs",
    "init",
    "list_presets",
    "load_cluster",
    "parallelize",
    "profile",
    "simulate_frontier",
    "simulate_memory",
]
