"""A training step of one rank without its memory: what is alive when."""

from tensoropt_torch.simulate.ledger import CATEGORIES, Category, MemoryProfile, Usage
from tensoropt_torch.simulate.step import StepSettings, simulate_step

__all__ = [
    "CATEGORIES",
    "Category",
    "MemoryProfile",
    "StepSettings",
    "Usage",
    "simulate_step",
]
