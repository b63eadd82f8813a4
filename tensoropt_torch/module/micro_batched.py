"""The batch of a step: the micro-batches that it is cut into, what these have to know of each
other, and the outputs that are joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tensoropt_torch.emit.copies import made_on
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.micro_batching import Join, MicroBatching
from tensoropt_torch.runtime.ops import reshard

# Seeds of the micro-batches of a step are so far apart.
SEED_STRIDE = 0x9E3779B97F4A7C15
SEEDS = 2**62


@dataclass(frozen=True)
class Gather:
    """How a rank's share of an input becomes the whole: an encoded program, and its groups."""

    steps: Sequence[int]
    groups: Sequence[str]


class MicroBatched:
    """What a batch is, of a graph of one of its micro-batches.

    Args:
        micro: how micro-batches make the batch.
        gathers: of the sources that totals are made of and of which each rank has a share.
        device: where totals are made.

    Attributes:
        count: how many micro-batches there are.
        loss: which output is differentiated.
    """

    def __init__(
        self,
        captured: CapturedModel,
        micro: MicroBatching,
        gathers: Mapping[int, Gather],
        device: torch.device,
    ) -> None:
        self.count = micro.count
        self.loss = micro.loss
        self._micro = micro
        self._gathers = gathers
        split = iter(micro.split)
        self._is_split = [
            source.kind in ("input", "literal") and next(split) for source in captured.sources
        ]
        self._totals: fx.GraphModule | None = None
        if micro.totals is not None:
            self._totals = made_on(micro.totals, device)

    def totals(self, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """What all micro-batches are given of the whole batch; ``values`` are those of all other
        sources. Collective."""
        if self._totals is None:
            return ()
        taken = []
        with torch.no_grad():
            for number in self._micro.total_sources:
                value = values[number]
                gather = self._gathers.get(number)
                if gather is not None:
                    value = reshard(value, gather.steps, gather.groups)
                taken.append(value)
            found: tuple[torch.Tensor, ...] = self._totals.forward(*taken)
        return found

    def part(self, values: Sequence[Any], number: int) -> Iterator[Any]:
        """What the graph takes of all sources' ``values``, of one micro-batch."""
        for value, is_split in zip(values, self._is_split, strict=True):
            yield value.chunk(self.count)[number] if is_split else value

    def outputs(self) -> JoinedOutputs:
        """The outputs of a step that begins."""
        return JoinedOutputs(self._micro.joins)


def seed_of(seed: int, number: int) -> int:
    """That of a micro-batch, whatever rank or stage computes it."""
    return (seed + number * SEED_STRIDE) % SEEDS


class JoinedOutputs:
    """Outputs of micro-batches, which become those of the batch."""

    def __init__(self, joins: Sequence[Join]) -> None:
        self._joins = joins
        self._parts: list[dict[int, Any]] = [{} for _ in joins]

    def add(self, number: int, outputs: Sequence[Any]) -> None:
        """Takes the outputs of a micro-batch."""
        for parts, join, output in zip(self._parts, self._joins, outputs, strict=True):
            if isinstance(output, torch.Tensor):
                output = output.detach()
            if join == "sum":
                parts[0] = parts[0] + output if parts else output
            elif join != "same" or not parts:
                parts[number] = output

    def repeat(self, number: int) -> None:
        """Of a micro-batch, like those of the one before it, but for the values."""
        for parts, join in zip(self._parts, self._joins, strict=True):
            if isinstance(join, int):
                parts[number] = _of_equal_memory(parts[number - 1])

    def joined(self) -> list[Any]:
        """The outputs of all micro-batches, in their order."""
        return [
            torch.cat([parts[number] for number in sorted(parts)], join)
            if isinstance(join, int)
            else next(iter(parts.values()))
            for parts, join in zip(self._parts, self._joins, strict=True)
        ]


def _of_equal_memory(tensor: torch.Tensor) -> torch.Tensor:
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = tensor.new_empty(elements)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
