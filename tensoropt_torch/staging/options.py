"""How a model is cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from tensoropt_torch.checks import check_whole
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.program.stage_schedules import ScheduleName, in_flight
from tensoropt_torch.stages import Cut, cut_points, even_cuts

Stages = int | Sequence[str | Cut] | tuple[int, ...]


@dataclass(frozen=True)
class StageOptions:
    """How a model is cut.

    Attributes:
        stages: how many, of about equal work; or the modules that stages begin with, by name
            (``"layers.4"``), or ``Before`` and ``After`` them.
            A tuple of numbers: before which calls of the graph of a micro-batch it is cut.
        micro_batches: of a step.
        schedule: ``1f1b``; ``interleaved``, whose stages have several chunks; or ``gpipe``, which
            makes gradients in backward, of whatever loss is computed of the outputs.
        chunks: of each stage; with names so many that there are stages times chunks parts.
    """

    stages: Stages = 2
    micro_batches: int = 1
    schedule: ScheduleName = "1f1b"
    chunks: int = 1

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, get_args(ScheduleName))
        check_whole("micro_batches", self.micro_batches, least=1)
        check_whole("chunks", self.chunks, least=1)
        if isinstance(self.stages, int):
            check_whole("stages", self.stages, least=2)
        elif isinstance(self.stages, str) or not self.stages:
            raise TensorOptError(
                f"stages = {self.stages!r} is not allowed; give a number, or a list of the "
                "modules that stages begin with, such as ['layers.4']"
            )
        if (self.chunks > 1) != (self.schedule == "interleaved"):
            try_this = "chunks=2" if self.chunks == 1 else "schedule='interleaved'"
            raise TensorOptError(
                f"schedule '{self.schedule}' with chunks={self.chunks}: the interleaved schedule "
                f"has 2 chunks or more in each stage, and the others have 1; give {try_this}"
            )

    @property
    def num_parts(self) -> int:
        """Into how many parts the graph is cut."""
        if isinstance(self.stages, int):
            return self.stages * self.chunks
        return len(self.stages) + 1

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        if self.num_parts % self.chunks:
            raise TensorOptError(
                f"stages names {self.num_parts - 1} cuts, which make {self.num_parts} parts; of "
                f"{self.chunks} chunks in each stage their number has to be a multiple"
            )
        return self.num_parts // self.chunks

    def cuts(self, captured: CapturedModel) -> list[int]:
        """Before which calls of the graph."""
        if isinstance(self.stages, int):
            return even_cuts(captured, self.num_parts)
        numbers = [cut for cut in self.stages if isinstance(cut, int)]
        return numbers or cut_points(captured, [c for c in self.stages if not isinstance(c, int)])

    def in_flight(self, part: int) -> int:
        """How many micro-batches wait in a part for their backward, at most."""
        return in_flight(self.schedule, part, self.num_stages, self.micro_batches, self.chunks)
