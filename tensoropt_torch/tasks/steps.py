"""What a simulated step is like besides its plan."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tensoropt_torch.config import DeviceType
from tensoropt_torch.planner.optimizer_model import OptimizerModel
from tensoropt_torch.simulate.step_settings import StepSettings
from tensoropt_torch.simulate.stock_optimizers import MakeOptimizer
from tensoropt_torch.tasks.example import ExampleKeywords


class StepKeywords(ExampleKeywords, total=False):
    """The keywords of functions that simulate: ``step``, and the fields of it."""

    step: StepSettings | None
    optimizer: str | OptimizerModel | MakeOptimizer
    device: DeviceType
    rank: int
    measure_workspaces: bool
    compiled: bool
    gloo: bool


def step_settings_of(keywords: StepKeywords) -> StepSettings:
    """The settings that a public function was given, as one, in parts, or both."""
    named = {part.name for part in fields(StepSettings)}
    changes: dict[str, Any] = {name: value for name, value in keywords.items() if name in named}
    return replace(keywords.get("step") or StepSettings(), **changes)
