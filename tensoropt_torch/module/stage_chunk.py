"""What a part of a model does on one rank in one step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from tensoropt_torch.emit.boxed import BoxedCall, BoxedStep
from tensoropt_torch.emit.one_node import Trained
from tensoropt_torch.module.gradient_sinks import StepSink
from tensoropt_torch.module.micro_batched import JoinedOutputs, seed_of
from tensoropt_torch.module.recorded_flight import RecordedFlight, StepBorders
from tensoropt_torch.module.stage_part import StageChunk, StagePart
from tensoropt_torch.runtime import reuse


class Flight:
    """A micro-batch in a chunk, between forward and backward."""

    def __init__(self) -> None:
        self.received: list[torch.Tensor] = []
        self.sent: list[torch.Tensor] = []
        self.ends: dict[int, torch.Tensor] = {}  # outputs that are differentiated, by place
        self.recorded: RecordedFlight | None = None  # else backward is that of autograd


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
        self._last = part.schedule.last_backward(part.chunks.index(chunk))
        self._recorded_ones: set[BoxedStep] = set()  # each by one micro-batch of a step
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

    @property
    def holds(self) -> bool:
        """Whether a step begins with what other ranks take part in."""
        return self.chunk.variant.hooked.head is not None and self._makes_gradients

    def hold(self) -> None:
        if self.holds:
            head = self.chunk.variant.hooked.head
            assert head is not None
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
        seed = seed_of(self._seed, number) if self.chunk.variant.uses_seeds else 0
        made = self._made(values, seed, number, flight)
        flight.sent = list(made[len(graph.outputs) :])
        outputs = made[: len(graph.outputs)]
        if self._makes_gradients:
            flight.ends = {
                place: output
                for place, output in enumerate(outputs)
                if isinstance(output, torch.Tensor) and self._has_gradient(flight, output)
            }
        self.outputs.add(number, outputs)

    def _has_gradient(self, flight: Flight, tensor: torch.Tensor) -> bool:
        if flight.recorded is None:
            return tensor.requires_grad
        return flight.recorded.has_gradient(tensor)

    def _made(self, values: Sequence[Any], seed: int, number: int, flight: Flight) -> Sequence[Any]:
        variant = self.chunk.variant
        if not self._makes_gradients:
            with torch.no_grad():
                return variant.forward(*values, seed)
        call = self._recorded(values, seed, number, flight.received)
        if call is not None:
            flight.recorded = RecordedFlight(call)
            return flight.recorded.made
        watched = self.sink.reduced.watched(values, self.leaves)
        with reuse.ReuseRegistry(variant.plan.settings.overlap, variant.name_of):
            made: Sequence[Any] = variant.hooked.body.forward(
                *watched, seed, *self._held, self.sink
            )
        return made

    def _recorded(
        self, values: Sequence[Any], seed: int, number: int, received: Sequence[torch.Tensor]
    ) -> BoxedCall | None:
        """The call of the graph as two functions; None: it runs under autograd. The first in a
        step that nothing is recorded for is recorded."""
        variant, crossings = self.chunk.variant, self.chunk.graph.received
        boxed = variant.boxed
        if boxed is None:
            return None
        numbers = [number for number, _ in variant.trained()]
        leaves = [*zip(numbers, self.leaves.values(), strict=True)]
        leaves += [
            (self.chunk.places[crossing.name], tensor)
            for crossing, tensor in zip(crossings, received, strict=True)
            if crossing.has_gradient
        ]
        trained = Trained.of([(number, leaf, None) for number, leaf in leaves])
        borders: StepBorders | None = None
        if self.sink.taken or self._held:
            sent = self.sink.sent(number == self._last)
            boxed = variant.boxed_pass((self.sink.taken, sent))
            borders = StepBorders(self.sink, sent, len(leaves))
            assert boxed is not None
        given, rest = [*values, seed, *self._held], boxed.changed

        def again() -> Any:
            own = [v.clone() if n in rest else v for n, v in enumerate(given)]
            with variant.registry():
                if borders is None:
                    return variant.graph.forward(*own)
                return variant.hooked.body.forward(*own, self.sink)

        records = boxed not in self._recorded_ones
        call = boxed.call(given, trained, again, borders, records=records)
        if call is not None and call.program is None:
            self._recorded_ones.add(boxed)
        return call

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
            if self._has_gradient(flight, tensor)
        ]
        pairs += [
            (flight.ends[place], gradient)
            for place, gradient in outer.items()
            if place in flight.ends
        ]
        flight.sent, flight.ends = [], {}
        if not pairs:
            return
        if flight.recorded is not None:
            recorded, flight.recorded = flight.recorded, None
            self._backward_recorded(recorded, pairs, flight.received)
            return
        tensors, of_tensors = zip(*pairs, strict=True)
        torch.autograd.backward(list(tensors), list(of_tensors))

    def _backward_recorded(
        self,
        recorded: RecordedFlight,
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
        received: Sequence[torch.Tensor],
    ) -> None:
        found = self.sink.reduced.found
        sums = {n: found[name] for n, name in enumerate(self.leaves) if name in found}
        gradients = iter(recorded.backward(pairs, sums))
        for name, leaf in self.leaves.items():
            gradient = next(gradients)
            if gradient is not None:
                self.sink.reduced.add(name, gradient, leaf.stride())
        for crossing, tensor in zip(self.chunk.graph.received, received, strict=True):
            if crossing.has_gradient:
                tensor.grad = next(gradients)

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
