"""A training step of one rank without its memory: what is alive when."""

from tensoropt_torch.simulate.compare import picked_by_peaks
from tensoropt_torch.simulate.ledger import CATEGORIES, Category, MemoryProfile, Usage
from tensoropt_torch.simulate.refine import (
    SURE_SHARE,
    NotSimulatedError,
    PeakTooLargeError,
    SimulatedPoint,
    fastest_within,
    mini_parallelism,
    mini_time,
    peak_of,
    pick_within,
    profile,
    row_of,
    simulate_frontier,
    step_of,
    within,
)
from tensoropt_torch.simulate.step import StepSettings, simulate_step

__all__ = [
    "CATEGORIES",
    "SURE_SHARE",
    "Category",
    "MemoryProfile",
    "NotSimulatedError",
    "PeakTooLargeError",
    "SimulatedPoint",
    "StepSettings",
    "Usage",
    "fastest_within",
    "mini_parallelism",
    "mini_time",
    "peak_of",
    "pick_within",
    "picked_by_peaks",
    "profile",
    "row_of",
    "simulate_frontier",
    "simulate_step",
    "step_of",
    "within",
]
