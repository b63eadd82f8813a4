"""A training step of one rank without its memory: what is alive when."""

from tensoropt_torch.simulate.compare import picked_by_peaks
from tensoropt_torch.simulate.ledger import CATEGORIES, MemoryProfile
from tensoropt_torch.simulate.refine import (
    HOPELESS,
    SURE_SHARE,
    NotSimulatedError,
    PeakTooLargeError,
    SimulatedPoint,
    fastest_within,
    mini_parallelism,
    mini_time,
    pick_within,
    profile,
    row_of,
    simulate_frontier,
    step_of,
    with_peaks,
    within,
)
from tensoropt_torch.simulate.step import StepSettings, simulate_step

__all__ = [
    "CATEGORIES",
    "HOPELESS",
    "SURE_SHARE",
    "MemoryProfile",
    "NotSimulatedError",
    "PeakTooLargeError",
    "SimulatedPoint",
    "StepSettings",
    "fastest_within",
    "mini_parallelism",
    "mini_time",
    "pick_within",
    "picked_by_peaks",
    "profile",
    "row_of",
    "simulate_frontier",
    "simulate_step",
    "step_of",
    "with_peaks",
    "within",
]
