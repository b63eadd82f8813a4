"""A step of one rank of a stage: runs the actions of its schedule (``stage_schedules.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.delivery import Deferred, Owed, Waiting, delivered
from tensoropt_torch.module.stage_chunk import ChunkStep
from tensoropt_torch.module.stage_outputs import OutputExchange
from tensoropt_torch.module.stage_part import StagePart
from tensoropt_torch.module.stage_transfers import StageTransfers
from tensoropt_torch.parameters.kept_gradients import reduce_before_adding
from tensoropt_torch.parameters.local_parts import local_tensor
from tensoropt_torch.parameters.written_parts import WrittenParts
from tensoropt_torch.program.schedule import Deliver, Hold, Join, ReduceGradients, Release, Repeat
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
    SumTied,
    Transfer,
)
from tensoropt_torch.runtime.agreement import DifferentCallsError, confirm_call
from tensoropt_torch.runtime.digests import digest_of_text
from tensoropt_torch.runtime.lost_ranks import LostRanksError, WaitEndedError, waiting
from tensoropt_torch.runtime.whereabouts import Place, note
from tensoropt_torch.stages import Crossing


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
        self._outer: Mapping[int, torch.Tensor] | None = None  # gradients of outputs, if deferred
        self._adds_kept = adds_kept
        tied = {tied.name for tied in part.tied}
        kept = frozenset() if reduces else frozenset(part.parameters.keys() - tied)
        own = [t for chunk in part.chunks for t in chunk.variant.own_tensors()]
        self._written = WrittenParts(own if part.schedule.is_deferred else ())
        self._chunks = [ChunkStep(chunk, part, inputs, seed, kept) for chunk in part.chunks]
        self._transfers: StageTransfers | None = None  # none before the ranks have agreed
        self._exchange: OutputExchange | None = None
        self._gradients: dict[tuple[int, int], Sequence[torch.Tensor]] = {}
        self._ready: dict[str, torch.Tensor | None] = {}
        self._made: list[list[Any]] = []  # the outputs of each chunk
        self._outputs: list[Any] = []

    def run(self) -> list[Any]:
        """The outputs, whose backward gives the parameters their gradients. The ranks may still
        have to agree on the call: what each computes by itself goes ahead.

        Raises:
            DifferentCallsError: on every rank; they do not agree. Nothing has changed.
        """
        actions = self._schedule.call
        own = sum(1 for _ in takewhile(self._is_own, actions))
        self._run(actions[:own])
        confirm_call()
        self._transfers = self._transfers_of(actions)
        self._exchange = OutputExchange(
            self._part.outputs, self._schedule.micro_batches, self._part.groups
        )
        self._run(actions[own:])
        return self._delivered() if self._schedule.makes_gradients else self._outputs

    def run_backward(self, outer: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients of the parameters, of a step whose gradients are deferred, for those of
        the floating outputs.

        Raises:
            TensorOptError: on every rank; they differentiate different outputs.
        """
        part = self._part
        pairs = zip(part.floating, outer, strict=True)
        self._outer = {number: gradient for number, gradient in pairs if gradient is not None}
        _agree(part, sorted(self._outer))
        self._transfers = self._transfers_of(self._schedule.backward)
        self._run(self._schedule.backward)
        return self._gradients_made

    @property
    def _gradients_made(self) -> list[torch.Tensor | None]:
        """Of what backward is delivered to."""
        return [self._ready[name] for name in self._part.parameters] or [None]

    def _is_own(self, action: StageAction) -> bool:
        """Whether no other rank takes part, before the graph of a forward confirms the call."""
        if isinstance(action, Hold):
            return not any(chunk.holds for chunk in self._chunks)
        return isinstance(action, RunForward)

    def _transfers_of(self, actions: Sequence[StageAction]) -> StageTransfers:
        return StageTransfers(self._schedule, actions, self._part.groups, self._memory)

    @property
    def _ends(self) -> Iterable[int]:
        """The outputs that are differentiated."""
        return (self._part.loss,) if self._outer is None else self._outer

    def _run(self, actions: Sequence[StageAction]) -> None:
        for action in actions:
            if isinstance(action, Deliver):
                continue
            try:
                _RUN[type(action)](self, action)
            except (WaitEndedError, DifferentCallsError):  # which are told afterwards
                raise
            except LostRanksError as error:
                raise LostRanksError(f"{self._where(action)}: {error}") from None
            except Exception as error:
                error.add_note(f"in {self._where(action)}")
                kind = "forward" if self._outer is None else "backward"
                note(Place(self._where(action), kind), error)
                raise

    def _where(self, action: StageAction) -> str:
        """For errors."""
        stage = self._schedule.stage
        if not isinstance(action, Compute | Transfer):
            return f"the end of the step of stage {stage}"
        of_part = f" of its chunk {action.chunk}" if self._schedule.chunks > 1 else ""
        return f"{_WORDS[type(action)]} micro-batch {action.micro_batch} in stage {stage}{of_part}"

    def _delivered(self) -> list[Any]:
        part, outputs = self._part, self._outputs
        parameters, places = [*part.parameters.values()], part.floating
        # A stage of which nothing is trained is called like the others.
        leaves = parameters or [torch.zeros((), requires_grad=True)]
        # Whose backward keeps this step: nothing of it may keep them.
        self._outputs, self._made = [], []
        for chunk in self._chunks:
            chunk.forget_outputs()
        owed: Owed
        if self._schedule.is_deferred:
            owed = Deferred(self.run_backward, self._keeps)
        else:
            owed = Waiting(places.index(part.loss), self._gradients_made, self._keeps)
        found = delivered(owed, [outputs[index] for index in places], leaves)
        self._written.watch(found)
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

    @property
    def _sent_and_received(self) -> StageTransfers:
        assert self._transfers is not None
        return self._transfers

    def hold(self, _: Hold) -> None:
        for chunk in self._chunks:
            chunk.hold()

    def receive_values(self, action: ReceiveValues) -> None:
        chunk = self._chunks[action.chunk]
        memory = self._sent_and_received.received(action)
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
        self._sent_and_received.send(action, packed)

    def receive_gradients(self, action: ReceiveGradients) -> None:
        chunk = self._chunks[action.chunk].chunk
        memory = self._sent_and_received.received(action)
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
        outer = self._of_outputs(action)
        self._chunks[action.chunk].backward(action.micro_batch, gradients, outer, action.reduces)

    def _of_outputs(self, action: RunBackward) -> dict[int, torch.Tensor | None]:
        """What backward of a micro-batch begins with, by place among the chunk's outputs."""
        if self._outer is None:
            loss = self._chunks[action.chunk].chunk.batch.loss
            return {loss: None} if loss >= 0 else {}
        groups, count = self._part.groups, self._schedule.micro_batches
        found: dict[int, torch.Tensor | None] = {}
        for number, gradient in self._outer.items():
            output = self._part.outputs[number]
            if (output.stage, output.chunk) == (groups.stage, action.chunk):
                own = output.own_gradient(gradient, action.micro_batch, count, groups)
                if own is not None:
                    found[output.place] = own
        return found

    def send_gradients(self, action: SendGradients) -> None:
        gradients = self._chunks[action.chunk].gradients_to_send(action.micro_batch)
        self._sent_and_received.send(action, gradients)

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
            is_reached = self._outer is None or self._part.is_reached(name, self._ends)
            self._ready[name] = found[0] if found and is_reached else None

    def sum_tied(self, _: SumTied) -> None:
        for tied in self._part.tied:
            if tied.group is None or tied.name not in self._part.parameters:
                continue
            parameter = self._part.parameters[tied.name]
            gradient = self._ready[tied.name]
            if not self._part.is_reached(tied.name, self._ends):
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
        self._sent_and_received.await_sends()

    def join(self, _: Join) -> None:
        self._made = [chunk.outputs.joined() for chunk in self._chunks]

    def share_outputs(self, _: ShareOutputs) -> None:
        assert self._exchange is not None
        with waiting():
            self._outputs = self._exchange.shared(self._made)


def _agree(part: StagePart, ends: Sequence[int]) -> None:
    """Raises TensorOptError on every rank unless all differentiate these outputs."""
    text = f"backward of outputs {', '.join(map(str, ends)) or 'none'} of its last call"
    digest = digest_of_text(text)
    if part.agreement.begin(digest, 0).is_reached():
        return
    flags: dict[str, bool] = {}  # which calls tell of besides
    reports = part.agreement.exchange((digest, text, flags))
    other = next(rank for rank, (found, *_) in enumerate(reports) if found != reports[0][0])
    raise TensorOptError(
        f"the ranks go different ways: rank 0 with {reports[0][1]}; rank {other} with "
        f"{reports[other][1]}; call the module, and backward, alike on all ranks"
    )


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
