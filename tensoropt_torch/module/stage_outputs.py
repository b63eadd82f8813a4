"""Outputs of a model in stages: each stage makes some, and all ranks get all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from tensoropt_torch.frontend.micro_batching import Join
from tensoropt_torch.runtime.stage_groups import StageGroups


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

    def shared(self, made: Sequence[Any], count: int, groups: StageGroups) -> Any:
        """The output on every rank. Collective.

        Args:
            made: those of its chunk, of all micro-batches; not looked at on other stages.
            count: how many micro-batches there are.
        """
        if self.dtype is None:
            return self.value
        if groups.stage == self.stage:
            tensor = made[self.place]
            if self.rows is not None:
                every = groups.all_of_stage(tensor)[:: groups.devices_of_stage // self.shares]
                shares = [share.chunk(count, self.rows) for share in every]
                ordered = [share[number] for number in range(count) for share in shares]
                tensor = torch.cat(ordered, self.rows)
            tensor = tensor.contiguous()
        else:
            tensor = torch.empty(self.shape, dtype=self.dtype, device=groups.device)
        dist.broadcast(tensor, group=groups.column, group_src=self.stage)
        return tensor

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
