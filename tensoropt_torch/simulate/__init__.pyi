from .compare import picked_by_peaks
from .ledger import CATEGORIES, MemoryProfile
from .refine import (
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
from .step import simulate_step
from .step_settings import StepSettings

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
