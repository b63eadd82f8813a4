"""Outputs of a model in stages: each stage makes some, and all ranks get all of them.

::

    outputs = OutputExchange(part.outputs, micro_batches, groups)
    ...                                 # the step
    found = outputs.shared(made)        # on all ranks alike
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from tensoropt_torch.frontend.micro_batching import Join
from tensoropt_torch.module.stage_transfers import begun
from tensoropt_torch.runtime.stage_groups import StageGroups

SMALL = 1 << 16  # bytes of an output


def number_of_share(groups: StageGroups, shares: int) -> int:
    """Which of so many different shares of the rows this rank has: ranks that follow each other
    have the same (``Settings.row_axes``)."""
    return groups.rank // (groups.devices_of_stage // shares)


@dataclass(frozen=True)
class StageOutput:
    """One output of the model.

    Attributes:
        value: what it is where it is no tensor.
        shape, dtype: of the tensor, of the whole batch.
        stage, chunk, place: whose chunk makes it, and its place among that chunk's outputs.
        join: how those of micro-batches become it.
        rows: the dim along which devices of the stage have shares; None: each has all of it.
        shares: how many different ones there are (``Settings.row_axes``).
        is_summed: whether the sum of what these devices give for its gradient counts, where each
            has all of it.
    """

    value: Any
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    stage: int
    chunk: int
    place: int
    join: Join
    rows: int | None
    is_summed: bool
    shares: int

    @staticmethod
    def of(
        value: object,
        at: tuple[int, int, int],
        join: Join,
        rows: int | None,
        is_summed: bool,
        shares: int,
    ) -> StageOutput:
        """That of a node, or of what is no tensor; ``at``: stage, chunk and place."""
        tensor = value.meta.get("val") if isinstance(value, fx.Node) else None
        if not isinstance(tensor, torch.Tensor):
            return StageOutput(value, (), None, *at, join, rows, is_summed, shares)
        shape, dtype = tuple(tensor.shape), tensor.dtype
        return StageOutput(None, shape, dtype, *at, join, rows, is_summed, shares)

    @property
    def is_floating(self) -> bool:
        """Whether it may have a gradient."""
        return self.dtype is not None and self.dtype.is_floating_point

    @property
    def is_small(self) -> bool:
        """Whether it may be kept from the beginning of a step for nothing."""
        return self.dtype is not None and 0 < math.prod(self.shape) * self.dtype.itemsize <= SMALL

    def whole(self, made: Sequence[Any], count: int, groups: StageGroups) -> torch.Tensor:
        """The output on a rank of the stage that makes it. Collective in that.

        Args:
            made: those of its chunk, of all micro-batches.
            count: how many micro-batches there are.
        """
        tensor: torch.Tensor = made[self.place]
        if self.rows is not None:
            every = groups.all_of_stage(tensor)[:: groups.devices_of_stage // self.shares]
            shares = [share.chunk(count, self.rows) for share in every]
            ordered = [share[number] for number in range(count) for share in shares]
            tensor = torch.cat(ordered, self.rows)
        return tensor.contiguous()

    def empty(self, device: torch.device) -> torch.Tensor:
        """Memory for it on a rank of another stage."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def own_gradient(
        self, gradient: torch.Tensor, number: int, count: int, groups: StageGroups
    ) -> torch.Tensor | None:
        """What this rank has of the output's gradient in micro-batch ``number`` of so many; None:
        nothing, where another one has it."""
        own = gradient
        if self.join == "same":
            if number != count - 1:
                return None
        elif self.join != "sum":
            own = own.chunk(count, self.join)[number]
        if self.rows is not None:
            return own.chunk(self.shares, self.rows)[number_of_share(groups, self.shares)]
        return torch.zeros_like(own) if self.is_summed and groups.rank else own


class OutputExchange:
    """Of one step of one rank. Small outputs are expected from its beginning, so that the stage
    that makes them goes on, to the optimizer, while others still compute: Gloo sends to those who
    wait, and to nobody else. Large ones, and those of GPUs, where what is expected takes a part of
    the device and who sends does not wait, are broadcast at its end.

    Args:
        outputs: of the model; the same on all ranks.
        count: how many micro-batches there are.
    """

    def __init__(self, outputs: Sequence[StageOutput], count: int, groups: StageGroups) -> None:
        self._outputs, self._count, self._groups = outputs, count, groups
        self._expected: dict[int, tuple[torch.Tensor, dist.Work]] = {}
        for number, output in enumerate(outputs):
            if self._is_expected(output) and output.stage != groups.stage:
                tensor, stage = output.empty(groups.device), output.stage
                work = dist.irecv(tensor, group=groups.column, group_src=stage, tag=number)
                self._expected[number] = tensor, begun(work)

    def _is_expected(self, output: StageOutput) -> bool:
        return output.is_small and self._groups.device.type == "cpu"

    def shared(self, made: Sequence[Sequence[Any]]) -> list[Any]:
        """All outputs, on every rank. Collective.

        Args:
            made: those of each chunk of this rank, of all micro-batches.
        """
        sent: list[dist.Work] = []
        found: list[Any] = []
        for number, output in enumerate(self._outputs):
            if output.dtype is None:
                found.append(output.value)
            elif number in self._expected:
                tensor, work = self._expected[number]
                work.wait()
                found.append(tensor)
            else:
                found.append(self._exchanged(number, output, made, sent))
        for work in sent:
            work.wait()
        return found

    def _exchanged(
        self,
        number: int,
        output: StageOutput,
        made: Sequence[Sequence[Any]],
        sent: list[dist.Work],
    ) -> torch.Tensor:
        """Of an output that this rank makes, or that is broadcast."""
        groups, is_own = self._groups, output.stage == self._groups.stage
        if not is_own:
            tensor = output.empty(groups.device)
        else:
            tensor = output.whole(made[output.chunk], self._count, groups)
        if not self._is_expected(output):
            dist.broadcast(tensor, group=groups.column, group_src=output.stage)
            return tensor
        others = (stage for stage in range(groups.stages) if stage != groups.stage)
        sent += [
            begun(dist.isend(tensor, group=groups.column, group_dst=stage, tag=number))
            for stage in others
        ]
        return tensor
