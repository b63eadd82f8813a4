"""What a part of a model does on one rank in one step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from tensoropt_torch.module.gradient_sinks import StepSink
from tensoropt_torch.module.micro_batched import JoinedOutputs, seed_of
from tensoropt_torch.module.stage_part import StageChunk, StagePart
from tensoropt_torch.runtime import reuse


class Flight:
    """A micro-batch in a chunk, between forward and backward."""

    def __init__(self) -> None:
        self.received: list[torch.Tensor] = []
        self.sent: list[torch.Tensor] = []
        self.ends: dict[int, torch.Tensor] = {}  # outputs that are differentiated, by place


class ChunkStep:
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
        self._flights: dict[int, Flight] = {}
        self.outputs = self._no_outputs()

    def _no_outputs(self) -> JoinedOutputs:
        micro = self.chunk.variant.captured.micro_batching
        assert micro is not None
        return JoinedOutputs(micro.joins[: len(self.chunk.graph.outputs)])

    def forget_outputs(self) -> None:
        """After they were joined."""
        self.outputs = self._no_outputs()

    def hold(self) -> None:
        head = self.chunk.variant.hooked.head
        if head is not None and self._makes_gradients:
            with torch.no_grad():
                self._held = head.forward(*self._values, 0)

    def release(self) -> None:
        self._held, self._values = (), []

    def flight(self, number: int) -> Flight:
        return self._flights.setdefault(number, Flight())

    def forward(self, number: int) -> None:
        graph = self.chunk.graph
        flight = self.flight(number)
        values = list(self.chunk.batch.part(self._values, number))
        for crossing, tensor in zip(graph.received, flight.received, strict=True):
            values[self.chunk.places[crossing.name]] = tensor
        made = self._made(values, seed_of(self._seed, number))
        flight.sent = list(made[len(graph.outputs) :])
        outputs = made[: len(graph.outputs)]
        if self._makes_gradients:
            flight.ends = {
                place: output
                for place, output in enumerate(outputs)
                if isinstance(output, torch.Tensor) and output.requires_grad
            }
        self.outputs.add(number, outputs)

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

    def backward(
        self,
        number: int,
        gradients: Sequence[torch.Tensor],
        outer: Mapping[int, torch.Tensor | None],
        reduces: bool,
    ) -> None:
        """With the gradients of what was sent, and those of outputs by place; None: of a loss."""
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
        pairs += [
            (flight.ends[place], gradient)
            for place, gradient in outer.items()
            if place in flight.ends
        ]
        flight.sent, flight.ends = [], {}
        if pairs:
            tensors, of_tensors = zip(*pairs, strict=True)
            torch.autograd.backward(list(tensors), list(of_tensors))

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
