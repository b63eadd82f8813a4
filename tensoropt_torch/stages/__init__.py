"""Stages of a pipeline: a captured graph that is cut along its order."""

from tensoropt_torch.stages.cut import Crossing, StageGraph, cut_graph, cut_stage
from tensoropt_torch.stages.owned import owned_cuts
from tensoropt_torch.stages.places import (
    After,
    Before,
    Cut,
    cut_points,
    even_cuts,
    trained_modules,
)

__all__ = [
    "After",
    "Before",
    "Crossing",
    "Cut",
    "StageGraph",
    "cut_graph",
    "cut_points",
    "cut_stage",
    "even_cuts",
    "owned_cuts",
    "trained_modules",
]
