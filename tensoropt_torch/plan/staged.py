"""Plans of models that are cut into stages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan.plan import Plan
from tensoropt_torch.units import format_costs


@dataclass(frozen=True)
class StagePlan:
    """The plan of one part of a model that is cut.

    Attributes:
        plan: of the part's graph, on the devices of one stage.
        storage: the layouts of parameters that other parts have as well, by name.
        first_draw: how many random calls the parts before it make.
    """

    plan: Plan
    storage: Mapping[str, str] = field(default_factory=dict)
    first_draw: int = 0


@dataclass(frozen=True)
class StagedPlan:
    """The plan of a model in stages.

    Attributes:
        fingerprint: of the whole graph.
        cuts: before which calls of the graph of a micro-batch it is cut, by number.
        parts: in the order of the graph; of S stages part p belongs to stage ``p % S``.
        stages: how many there are.
        micro_batches: of a step.
        schedule: in which order stages run them.
        captured: the model, where that is at hand.
    """

    fingerprint: str
    cuts: tuple[int, ...]
    parts: tuple[StagePlan, ...]
    stages: int
    micro_batches: int
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    captured: CapturedModel | None = field(default=None, compare=False, repr=False)

    @property
    def chunks(self) -> int:
        """How many parts each stage has."""
        return len(self.parts) // self.stages

    @property
    def devices_of_stage(self) -> int:
        """Of each."""
        return self.parts[0].plan.num_devices

    @property
    def num_devices(self) -> int:
        """Of all stages together."""
        return self.stages * self.devices_of_stage

    @property
    def hash(self) -> str:
        """Equal for equal plans."""
        own = (self.fingerprint, self.cuts, self.stages, self.micro_batches, self.schedule)
        parts = [(p.plan.hash, sorted(p.storage.items()), p.first_draw) for p in self.parts]
        return hashlib.sha256(repr((own, parts)).encode()).hexdigest()[:16]

    def check_model(self, captured: CapturedModel) -> None:
        """Raises TensorOptError if the plan was made for something else."""
        if self.fingerprint != captured.fingerprint:
            raise TensorOptError(
                f"the plan was made for another model or batch (fingerprint {self.fingerprint}); "
                f"this model with these inputs has fingerprint {captured.fingerprint}; plan again"
            )

    def __str__(self) -> str:
        """A line for each stage."""
        lines = [
            f"{self.stages} stages of {self.devices_of_stage} devices, {self.micro_batches} "
            f"micro-batches, schedule {self.schedule}"
        ]
        for number, part in enumerate(self.parts):
            costs = format_costs(part.plan.memory_bytes, part.plan.time_s)
            lines.append(f"stage {number % self.stages}: {costs}")
        return "\n".join(lines)
