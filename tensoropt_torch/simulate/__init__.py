"""A training step of one rank without its memory: what is alive when."""

from tensoropt_torch.simulate.ledger import CATEGORIES, Category, MemoryProfile, Usage
from tensoropt_torch.simulate.refine import (
    SimulatedPoint,
    fastest_within,
    mini_parallelism,
    mini_time,
    simulate_frontier,
    step_of,
    within,
)
from tensoropt_torch.simulate.step import StepSettings, simulate_step

__all__ = [
    "CATEGORIES",
    "Category",
    "MemoryProfile",
    "SimulatedPoint",
    "StepSettings",
    "Usage",
    "fastest_within",
    "mini_parallelism",
    "mini_time",
    "simulate_frontier",
    "simulate_step",
    "step_of",
    "within",
]
