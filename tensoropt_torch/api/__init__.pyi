from .advice import advise
from .comparing import compare, explain, find_tradeoffs
from .measuring import profile_hardware, simulate_memory, validate
from .planning import find_frontier, find_strategy, profile
from .training import auto_parallel, init, parallelize

__all__ = [
    "advise",
    "auto_parallel",
    "compare",
    "explain",
    "find_frontier",
    "find_strategy",
    "find_tradeoffs",
    "init",
    "parallelize",
    "profile",
    "profile_hardware",
    "simulate_memory",
    "validate",
]
