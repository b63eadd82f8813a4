"""A training step of one rank without its memory: what is alive when."""

from tensoropt_torch.simulate.ledger import CATEGORIES, Category, MemoryProfile, Usage
from tensoropt_torch.simulate.refine import SimulatedPoint, fastest_within, simulate_frontier
from tensoropt_torch.simulate.step import Device, StepSettings, simulate_step

__all__ = [
    "CATEGORIES",
    "Category",
    "Device",
    "MemoryProfile",
    "SimulatedPoint",
    "StepSettings",
    "Usage",
    "fastest_within",
    "simulate_frontier",
    "simulate_step",
]
