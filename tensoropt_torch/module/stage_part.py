"""What a rank of a stage has to run for calls of one kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.module.micro_batched import MicroBatched
from tensoropt_torch.module.reached import Reach
from tensoropt_torch.module.stage_outputs import StageOutput, number_of_share
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.program.stage_schedules import StageSchedule
from tensoropt_torch.runtime.agreement import CallAgreement
from tensoropt_torch.runtime.stage_groups import StageGroups
from tensoropt_torch.space.rows import OutputRows
from tensoropt_torch.stages import StageGraph


@dataclass(frozen=True)
class StageChunk:
    """A part of the model on this rank.

    Attributes:
        graph: of the part.
        variant: what runs it.
        received, sent: the shapes that this rank has of what comes and goes.
        alone: which of ``sent`` every device has whole, though inputs are shared out: of their
            gradients the ranks' sum counts.
    """

    graph: StageGraph
    variant: Variant
    received: tuple[tuple[int, ...], ...]
    sent: tuple[tuple[int, ...], ...]
    alone: tuple[bool, ...]

    @cached_property
    def places(self) -> dict[str, int]:
        """The numbers of the sources that are received, by name."""
        names = {crossing.name for crossing in self.graph.received}
        return {
            source.names[0]: number
            for number, source in enumerate(self.variant.captured.sources)
            if source.kind == "input" and source.placeholder.name in names
        }

    @property
    def batch(self) -> MicroBatched:
        """How it runs micro-batches."""
        assert self.variant.batch is not None
        return self.variant.batch


@dataclass(frozen=True)
class Tied:
    """A parameter that several stages have, or several chunks of one.

    Attributes:
        name: the first of its names.
        group: of the ranks of other stages that have the same part; None: there is no other.
    """

    name: str
    group: dist.ProcessGroup | None


@dataclass(frozen=True)
class StagePart:
    """What a rank of a stage has to run.

    Attributes:
        schedule: of the stage.
        chunks: of the stage.
        parameters: by first name, those of the stage that are trained.
        tied: in the order in which all ranks add them up.
        outputs: of the model.
        loss: which of them is differentiated in the call; -1: none is.
        reach: which parameters outputs depend on; None: no gradients are made.
        out_spec: the containers of the outputs.
        uses_seeds: whether a stage draws random numbers.
        rows: the dims of inputs whose rows are shared out to devices of a stage, by name.
        shares: how many different ones there are.
        captured: the graph of the whole batch.
        agreement: of the ranks on what they call.
        output_rows: where outputs have the rows of the batch, if ranks are given shares of it.
    """

    groups: StageGroups
    schedule: StageSchedule
    chunks: tuple[StageChunk, ...]
    parameters: Mapping[str, torch.Tensor]
    tied: tuple[Tied, ...]
    outputs: tuple[StageOutput, ...]
    loss: int
    reach: Reach | None
    out_spec: pytree.TreeSpec
    uses_seeds: bool
    rows: Mapping[str, int]
    shares: int
    captured: CapturedModel
    agreement: CallAgreement
    output_rows: tuple[OutputRows, ...] = ()

    def cut(self, name: str, value: Any) -> Any:
        """The share of this rank of every micro-batch of an input."""
        if self.rows.get(name) is None or self.shares == 1:
            return value
        micro = value.chunk(self.schedule.micro_batches)
        number = number_of_share(self.groups, self.shares)
        return torch.cat([rows.chunk(self.shares)[number] for rows in micro])

    @property
    def floating(self) -> list[int]:
        """The outputs that may have gradients."""
        return [number for number, output in enumerate(self.outputs) if output.is_floating]

    def is_reached(self, parameter: str, ends: Iterable[int]) -> bool:
        """Whether one of these outputs depends on a parameter."""
        assert self.reach is not None
        return any(self.reach.is_reached(parameter, number) for number in ends)
