"""What pages show of a frontier, and of the simulated peak of one of its points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Plan, Settings, StagedPlan
from tensoropt_torch.planner.searched import Points


class Peak(Protocol):
    """A simulated peak: bytes of one device, in all and by what they are for, and after each event
    of a step, with the events with which its phases begin."""

    @property
    def peak_bytes(self) -> int: ...
    @property
    def curve(self) -> Sequence[int]: ...
    @property
    def begins(self) -> Mapping[Any, int]: ...
    @property
    def categories(self) -> Mapping[Any, int]: ...


@dataclass(frozen=True)
class FrontierView:
    """A frontier, by its short name and its title: its (memory_bytes, time_s) points by
    ascending memory, how to get their plans, and in how many stages and micro-batches they run;
    the limit of a pick if none is given."""

    name: str
    title: str
    points: Points
    default_memory_limit: float
    settings: Settings
    captured: CapturedModel
    plan: Callable[[int], Plan | StagedPlan]
    shape: Callable[[int], tuple[int, int]]
