"""A step of one rank of a stage: runs the actions of its schedule (``stage_schedules.py``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.module.delivery import Waiting, delivered
from tensoropt_torch.module.gradient_sinks import StepSink
from tensoropt_torch.module.micro_batched import JoinedOutputs, MicroBatched, seed_of
from tensoropt_torch.module.stage_outputs import StageOutput
from tensoropt_torch.module.stage_transfers import StageTransfers
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.parameters.kept_gradients import reduce_before_adding
from tensoropt_torch.parameters.local_parts import local_tensor
from tensoropt_torch.program.schedule import Hold, Join, ReduceGradients, Release, Repeat
from tensoropt_torch.program.stage_schedules import (
    AwaitSends,
    Compute,
    ReceiveGradients,
    ReceiveValues,
    RunBackward,
    RunForward,
    SendGradients,
    SendValues,
    ShareOutputs,
    StageAction,
    StageSchedule,
    SumTied,
    Transfer,
)
from tensoropt_torch.runtime import reuse
from tensoropt_torch.runtime.lost_ranks import LostRanksError, waiting
from tensoropt_torch.runtime.stage_groups import StageGroups
from tensoropt_torch.runtime.whereabouts import Place, note
from tensoropt_torch.stages import Crossing, StageGraph


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
        is_reached: whether the loss depends on it.
    """

    name: str
    group: dist.ProcessGroup | None
    is_reached: bool


@dataclass(frozen=True)
class StagePart:
    """What a rank of a stage has to run.

    Attributes:
        schedule: of the stage.
        chunks: of the stage.
        parameters: by first name, those of the stage that are trained.
        tied: in the order in which all ranks add them up.
        outputs: of the model.
        loss: which of them is differentiated; -1: none is.
        out_spec: the containers of the outputs.
        uses_seeds: whether a stage draws random numbers.
        rows: the dims of inputs whose rows are shared out to devices of a stage, by name.
        shares: to how many.
        captured: the graph of the whole batch.
    """

    groups: StageGroups
    schedule: StageSchedule
    chunks: tuple[StageChunk, ...]
    parameters: Mapping[str, torch.Tensor]
    tied: tuple[Tied, ...]
    outputs: tuple[StageOutput, ...]
    loss: int
    out_spec: pytree.TreeSpec
    uses_seeds: bool
    rows: Mapping[str, int]
    shares: int
    captured: CapturedModel

    def cut(self, name: str, value: Any) -> Any:
        """The share of this rank of every micro-batch of an input."""
        if self.rows.get(name) is None or self.shares == 1:
            return value
        micro = value.chunk(self.schedule.micro_batches)
        return torch.cat([rows.chunk(self.shares)[self.groups.rank] for rows in micro])


class _Flight:
    """A micro-batch in a chunk, between forward and backward."""

    def __init__(self) -> None:
        self.received: list[torch.Tensor] = []
        self.sent: list[torch.Tensor] = []
        self.loss: torch.Tensor | None = None


class _ChunkStep:
    """A chunk in one step.

    Args:
        inputs: of the model, whole.
        kept: the names of parameters whose gradients are not reduced.
    """

    def __init__(
        self,
        chunk: StageChunk,
        part: StagePart,
        inputs: Sequence[Any],
        seed: int,
        kept: Collection[str],
    ) -> None:
        self.chunk = chunk
        self._seed = seed
        self._makes_gradients = part.schedule.makes_gradients
        variant = chunk.variant
        own = [inputs[number] for number in chunk.graph.inputs]
        blank = [None] * len(chunk.graph.received)
        # Totals are of the whole batch, which every rank has.
        self._values = variant.detached_values([*own, *blank])
        for number, source in enumerate(variant.captured.sources):
            if source.kind == "input" and number not in chunk.places.values():
                self._values[number] = part.cut(source.names[0], self._values[number])
        self.leaves: dict[str, torch.Tensor] = {}
        if self._makes_gradients:
            for number, _ in variant.trained():
                name = variant.captured.sources[number].names[0]
                self._values[number] = self.leaves[name] = self._values[number].requires_grad_()
        self.sink = StepSink(variant.hooked.borders, self.leaves, kept)
        self._held: tuple[torch.Tensor, ...] = ()
        self._flights: dict[int, _Flight] = {}
        micro = variant.captured.micro_batching
        assert micro is not None
        self.outputs = JoinedOutputs(micro.joins[: len(chunk.graph.outputs)])

    def hold(self) -> None:
        head = self.chunk.variant.hooked.head
        if head is not None and self._makes_gradients:
            with torch.no_grad():
                self._held = head.forward(*self._values, 0)

    def release(self) -> None:
        self._held, self._values = (), []

    def flight(self, number: int) -> _Flight:
        return self._flights.setdefault(number, _Flight())

    def forward(self, number: int) -> None:
        graph = self.chunk.graph
        flight = self.flight(number)
        values = list(self.chunk.batch.part(self._values, number))
        for crossing, tensor in zip(graph.received, flight.received, strict=True):
            values[self.chunk.places[crossing.name]] = tensor
        made = self._made(values, seed_of(self._seed, number))
        flight.sent = list(made[len(graph.outputs) :])
        loss = self.chunk.batch.loss
        flight.loss = made[loss] if loss >= 0 and self._makes_gradients else None
        self.outputs.add(number, made[: len(graph.outputs)])

    def _made(self, values: Sequence[Any], seed: int) -> Sequence[Any]:
        variant = self.chunk.variant
        if not self._makes_gradients:
            with torch.no_grad():
                return variant.forward(*values, seed)
        watched = self.sink.reduced.watched(values, self.leaves)
        with reuse.ReuseRegistry(variant.plan.settings.overlap, variant.name_of):
            made: Sequence[Any] = variant.hooked.body.forward(
                *watched, seed, *self._held, self.sink
            )
        return made

    def backward(self, number: int, gradients: Sequence[torch.Tensor], reduces: bool) -> None:
        flight = self.flight(number)
        self.sink.is_last = reduces
        trained = [
            tensor
            for crossing, tensor in zip(self.chunk.graph.sent, flight.sent, strict=True)
            if crossing.has_gradient
        ]
        pairs: list[tuple[torch.Tensor, torch.Tensor | None]] = [
            (tensor, gradient)
            for tensor, gradient in zip(trained, gradients, strict=True)
            if tensor.requires_grad
        ]
        if flight.loss is not None:
            pairs.append((flight.loss, None))
        flight.sent, flight.loss = [], None
        if pairs:
            tensors, outer = zip(*pairs, strict=True)
            torch.autograd.backward(list(tensors), list(outer))

    def gradients_to_send(self, number: int) -> list[torch.Tensor]:
        """Of what was received, with which the micro-batch is done here."""
        flight = self._flights.pop(number)
        found = []
        for crossing, tensor in zip(self.chunk.graph.received, flight.received, strict=True):
            if crossing.has_gradient:
                gradient = tensor.grad
                found.append(
                    crossing.packed(torch.zeros_like(tensor) if gradient is None else gradient)
                )
        return found


class StageStep:
    """One step of a rank.

    Args:
        inputs: of the model, whole.
        reduces: gradients get the layouts of their parameters; otherwise those of parameters
            that one part alone has stay as they are made.
        adds_kept: some were kept so before.
    """

    def __init__(
        self,
        part: StagePart,
        inputs: Sequence[Any],
        seed: int,
        *,
        reduces: bool = True,
        adds_kept: bool = False,
    ) -> None:
        self._part = part
        self._schedule = part.schedule
        self._keeps = not reduces
        self._adds_kept = adds_kept
        tied = {tied.name for tied in part.tied}
        kept = frozenset() if reduces else frozenset(part.parameters.keys() - tied)
        self._chunks = [_ChunkStep(chunk, part, inputs, seed, kept) for chunk in part.chunks]
        self._transfers = StageTransfers(part.schedule, part.groups, self._memory)
        self._gradients: dict[tuple[int, int], Sequence[torch.Tensor]] = {}
        self._ready: dict[str, torch.Tensor | None] = {}
        self._made: list[list[Any]] = []  # the outputs of each chunk
        self._outputs: list[Any] = []

    def run(self) -> list[Any]:
        """The outputs, of which the loss has a backward that gives the parameters their
        gradients."""
        for action in self._schedule.call:
            try:
                _RUN[type(action)](self, action)
            except LostRanksError as error:
                raise LostRanksError(f"{self._where(action)}: {error}") from None
            except Exception as error:
                error.add_note(f"in {self._where(action)}")
                note(Place(f"{self._where(action)}, where it has failed", "forward"))
                raise
        return self._delivered() if self._schedule.makes_gradients else self._outputs

    def _where(self, action: StageAction) -> str:
        """For errors."""
        stage = self._schedule.stage
        if not isinstance(action, Compute | Transfer):
            return f"the end of the step of stage {stage}"
        of_part = f" of its chunk {action.chunk}" if self._schedule.chunks > 1 else ""
        return f"{_WORDS[type(action)]} micro-batch {action.micro_batch} in stage {stage}{of_part}"

    def _delivered(self) -> list[Any]:
        part, outputs = self._part, self._outputs
        parameters = [*part.parameters.values()]
        places = [index for index, output in enumerate(part.outputs) if output.is_floating]
        ready = [self._ready[name] for name in part.parameters]
        owed = Waiting(places.index(part.loss), ready, self._keeps)
        found = delivered(owed, [outputs[index] for index in places], parameters)
        if self._adds_kept:
            reduce_before_adding(parameters)
        for index, tensor in zip(places, found, strict=True):
            outputs[index] = tensor
        return outputs

    def _memory(self, action: Transfer) -> list[torch.Tensor]:
        chunk = self._part.chunks[action.chunk]
        of_values = isinstance(action, ReceiveValues)
        crossings = chunk.graph.received if of_values else chunk.graph.sent
        shapes = chunk.received if of_values else chunk.sent
        return [
            _empty(crossing, shape, self._part.groups.device)
            for crossing, shape in zip(crossings, shapes, strict=True)
            if of_values or crossing.has_gradient
        ]

    def hold(self, _: Hold) -> None:
        for chunk in self._chunks:
            chunk.hold()

    def receive_values(self, action: ReceiveValues) -> None:
        chunk = self._chunks[action.chunk]
        memory = self._transfers.received(action)
        crossings, gradients = chunk.chunk.graph.received, self._schedule.makes_gradients
        chunk.flight(action.micro_batch).received = [
            crossing.unpacked(tensor).requires_grad_(crossing.has_gradient and gradients)
            for crossing, tensor in zip(crossings, memory, strict=True)
        ]

    def forward(self, action: RunForward) -> None:
        self._chunks[action.chunk].forward(action.micro_batch)

    def repeat(self, action: Repeat) -> None:
        for chunk in self._chunks:
            chunk.outputs.repeat(action.micro_batch)

    def send_values(self, action: SendValues) -> None:
        chunk = self._chunks[action.chunk]
        sent = chunk.flight(action.micro_batch).sent
        graph, shapes = chunk.chunk.graph, chunk.chunk.sent
        for crossing, tensor, shape in zip(graph.sent, sent, shapes, strict=True):
            assert tuple(tensor.shape) == shape, (crossing, tensor.shape, shape)
        packed = [c.packed(t.detach()) for c, t in zip(graph.sent, sent, strict=True)]
        self._transfers.send(action, packed)

    def receive_gradients(self, action: ReceiveGradients) -> None:
        chunk = self._chunks[action.chunk].chunk
        memory = self._transfers.received(action)
        trained = [
            (crossing, alone)
            for crossing, alone in zip(chunk.graph.sent, chunk.alone, strict=True)
            if crossing.has_gradient
        ]
        # All ranks have got the same, of which the sum counts.
        is_first = self._part.groups.rank == 0
        self._gradients[action.micro_batch, action.chunk] = [
            crossing.unpacked(tensor if is_first or not alone else tensor.zero_())
            for (crossing, alone), tensor in zip(trained, memory, strict=True)
        ]

    def backward(self, action: RunBackward) -> None:
        gradients = self._gradients.pop((action.micro_batch, action.chunk), ())
        self._chunks[action.chunk].backward(action.micro_batch, gradients, action.reduces)

    def send_gradients(self, action: SendGradients) -> None:
        gradients = self._chunks[action.chunk].gradients_to_send(action.micro_batch)
        self._transfers.send(action, gradients)

    def release(self, _: Release) -> None:
        for chunk in self._chunks:
            chunk.release()

    def reduce(self, _: ReduceGradients) -> None:
        """And those of a parameter in several chunks become one."""
        for chunk in self._chunks:
            chunk.sink.reduce()
        for name, parameter in self._part.parameters.items():
            made = [
                chunk.sink.gradient_of(name, parameter)
                for chunk in self._chunks
                if name in chunk.leaves
            ]
            found = [gradient for gradient in made if gradient is not None]
            for other in found[1:]:
                local_tensor(found[0]).add_(local_tensor(other))
            self._ready[name] = found[0] if found else None

    def sum_tied(self, _: SumTied) -> None:
        for tied in self._part.tied:
            if tied.group is None or tied.name not in self._part.parameters:
                continue
            parameter = self._part.parameters[tied.name]
            gradient = self._ready[tied.name]
            if not tied.is_reached:
                continue
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            local = local_tensor(gradient)
            assert isinstance(parameter, DTensor)
            total = local.contiguous()
            dist.all_reduce(total, group=tied.group)
            if total is not local:
                local.copy_(total)
            self._ready[tied.name] = gradient

    def await_sends(self, _: AwaitSends) -> None:
        self._transfers.await_sends()

    def join(self, _: Join) -> None:
        self._made = [chunk.outputs.joined() for chunk in self._chunks]

    def share_outputs(self, _: ShareOutputs) -> None:
        groups, count = self._part.groups, self._schedule.micro_batches
        with waiting():
            self._outputs = [
                output.shared(self._made[output.chunk], count, groups)
                for output in self._part.outputs
            ]


def _empty(crossing: Crossing, shape: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.empty([shape[dim] for dim in crossing.order], dtype=crossing.dtype, device=device)


_WORDS: Mapping[type[StageAction], str] = {
    ReceiveValues: "waiting for what the stage before sends of",
    RunForward: "the forward of",
    SendValues: "sending what the stage after takes of",
    ReceiveGradients: "waiting for the gradients that the stage after sends of",
    RunBackward: "the backward of",
    SendGradients: "sending the gradients that the stage before takes of",
}
_RUN: Mapping[type[StageAction], Callable[[StageStep, Any], None]] = {
    Hold: StageStep.hold,
    ReceiveValues: StageStep.receive_values,
    RunForward: StageStep.forward,
    Repeat: StageStep.repeat,
    SendValues: StageStep.send_values,
    ReceiveGradients: StageStep.receive_gradients,
    RunBackward: StageStep.backward,
    SendGradients: StageStep.send_gradients,
    Release: StageStep.release,
    ReduceGradients: StageStep.reduce,
    SumTied: StageStep.sum_tied,
    AwaitSends: StageStep.await_sends,
    Join: StageStep.join,
    ShareOutputs: StageStep.share_outputs,
}
