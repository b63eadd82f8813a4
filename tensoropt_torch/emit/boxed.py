"""The step of a rank as two functions: autograd has one node for all of its operators, and the
dispatcher does not ask for autograd in between.

::

    step = BoxedStep(rank_graph, own, registry)  # where that can be (``boxed_step.py``)
    outputs = step.forward(values, trained, again)  # None: the graph is to run as it is

The first step runs the graph as it is, and is recorded (``tape.py``); the next ones call again
what was recorded. What else may be asked of a step is done by the graph as it is: second
derivatives, gradients of other outputs than before, hooks on what is saved, the search for
anomalies. Where nothing can be recorded, that is all that there is, and the log says why.

What is recorded has the same collectives in the same order as the graph as it is. So a rank may
run that while others run what they have recorded. Only where backward has to run forward again do
all ranks, as they do what the same program asks of them: second derivatives, other casts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.boxed_program import BoxedProgram, laid_out
from tensoropt_torch.emit.compilation import is_local
from tensoropt_torch.emit.one_node import Trained, changed_error, freed_error, run_as_one_node
from tensoropt_torch.emit.recorded_borders import Borders, Given, RecordedBorders
from tensoropt_torch.emit.recorder import Recorder, is_seed
from tensoropt_torch.emit.tape import NotRecordedError, Tape
from tensoropt_torch.emit.written import changed_inputs
from tensoropt_torch.frontend.call_context import autocast_off, current_autocast
from tensoropt_torch.logs import get_logger
from tensoropt_torch.runtime.agreement import confirm_call
from tensoropt_torch.runtime.reuse import ReuseRegistry

log = get_logger(__name__)

MOST_PROGRAMS = 4  # by what is asked of steps
MOST_RECORDINGS = 8
Registry = Callable[[], ReuseRegistry]
Again = Callable[[], Any]  # the outputs of the graph as it is, which follow from what is trained

_C: Any = torch._C
_STRIDE: Any = torch.Tensor.stride
_VERSION = attrgetter("_version")
# How many of the dispatch modes that are active want to see the operators of recorded functions.
_SEE_FUNCTIONS: ContextVar[int] = ContextVar("modes that see recorded functions", default=0)


class BoxedStep:
    """The graph of a rank, as one function.

    Args:
        own: the numbers of the inputs that are parameters, buffers and tables: tensors whose
            shapes and dtypes never change.
        registry: the context in which the graph runs.
        takes_sink: the last input is one, for calls with borders.

    Attributes:
        reason: why it runs as it is; empty: it does not.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        own: Sequence[int],
        registry: Registry,
        takes_sink: bool = False,
    ) -> None:
        self.reason = ""
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        self.is_alone = all(is_local(node) or node.target is confirm_call for node in calls)
        self._registry = registry
        self._own_numbers = [*own]
        self._own = _getter(own)
        self._graph = graph
        self._programs: dict[Any, _Known] = {}
        self._recordings = 0
        inputs = graph.graph.find_nodes(op="placeholder")
        self._seeds = [n for n, node in enumerate(inputs) if is_seed(node)]
        known = {*own, *self._seeds}
        count = len(inputs) - (1 if takes_sink else 0)
        self._given = [n for n in range(count) if n not in known]
        self.changed, follows = changed_inputs(graph.graph)
        if follows:  # backward may have to run forward again
            self._give_up("outputs follow from inputs that forward writes to")

    def forward(
        self,
        values: Sequence[Any],
        trained: Trained,
        again: Again,
        borders: Borders | None = None,
    ) -> Any:
        """The outputs of the graph for these values, without what they follow from; None: the graph
        is to be run as it is. One that has ``borders`` takes a sink besides, after the values."""
        call = self.call(values, trained, again, borders)
        if call is None:
            return None
        made = run_as_one_node(call)
        if made is None:
            return None
        return pytree.tree_unflatten(call.leaves(made), call.spec)

    def call(
        self,
        values: Sequence[Any],
        trained: Trained,
        again: Again,
        borders: Borders | None = None,
        *,
        records: bool = True,
    ) -> BoxedCall | None:
        """A call for these values, whose two halves are yet to run; None: the graph is to be run as
        it is, also where there is nothing recorded, unless it ``records``."""
        if self.reason or not torch.is_grad_enabled() or is_watched() or not trained.tensors:
            return None
        key = self._key(values, trained)
        known = self._programs.get(key)
        if known is None and not records:
            return None
        if known is None and self._recordings >= MOST_RECORDINGS:
            self._give_up("what they are called with differs from step to step")
            return None
        return BoxedCall(self, known, key, values, trained, again, borders)

    def _key(self, values: Sequence[Any], trained: Trained) -> Any:
        """What a program depends on."""
        return (
            trained.numbers,
            *map(_STRIDE, self._own(values)),
            *[_kind_of(values[number]) for number in self._given],
            torch.are_deterministic_algorithms_enabled(),
            _C._get_flash_sdp_enabled(),
            _C._get_mem_efficient_sdp_enabled(),
            _C._get_math_sdp_enabled(),
            _C._get_cudnn_sdp_enabled(),
        )

    def versions(self, values: Sequence[Any], held: Sequence[torch.Tensor]) -> list[Any]:
        """Those of all tensors among values and outputs; what is no tensor, and what cannot
        change because it is of inference, has None."""
        given = [_version_of(values[number]) for number in self._given]
        return [*map(_VERSION, self._own(values)), *given, *map(_VERSION, held)]

    def is_changed(self, before: Sequence[Any], now: Sequence[Any], needs: Sequence[int]) -> bool:
        """Whether somebody has written to a value that is needed, or to an output."""
        order = [*self._own_numbers, *self._given]
        needed = {*needs} - {*self.changed}
        pairs = zip(before, now, strict=True)
        return any(
            a != b and (place >= len(order) or order[place] in needed)
            for place, (a, b) in enumerate(pairs)
        )

    def record(
        self, values: Sequence[Any], trained: Trained, borders: Borders | None
    ) -> _Recording:
        """Runs the graph on what is given."""
        self._recordings += 1
        passed = None if borders is None else RecordedBorders(borders)
        own = [v.detach() if isinstance(v, torch.Tensor) else v for v in values]
        leaves = [own[number].requires_grad_() for number in trained.numbers]
        tape = Tape(own, self._seeds)
        with torch.enable_grad(), tape, self._registry():
            sinks = () if passed is None else (passed,)
            outputs = Recorder(self._graph, tape).run(*own, *sinks)
        names = () if borders is None else borders.names
        return _Recording(tape, leaves, outputs, passed, names)

    def keep(self, key: Any, program: BoxedProgram, recording: _Recording) -> None:
        """For the next calls."""
        if len(self._programs) == MOST_PROGRAMS:
            self._give_up("what they are called with differs too much")
        else:
            self._programs[key] = _Known(program, recording.spec, recording.places)

    def forget(self, key: Any) -> None:
        """Its program is not what is asked for any more."""
        self._programs.pop(key, None)

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._programs.clear()
        log.info("operators of a step run one by one: %s", reason)

    @property
    def below_autograd(self) -> Any:
        """The dispatcher asks autograd for nothing; versions tell what is written to."""
        if self.changed:
            return _C._AutoDispatchBelowAutograd()
        return _C._AutoDispatchBelowADInplaceOrView()


def is_watched() -> bool:
    """Whether somebody wants to see each operator, or what is saved of it, or differentiates in
    forward."""
    return (
        _C._len_torch_dispatch_stack() > _SEE_FUNCTIONS.get()
        or forward_ad._current_level >= 0
        or torch.is_anomaly_enabled()
        or _C._autograd._top_saved_tensors_default_hooks(True) is not None
    )


@contextmanager
def functions_are_seen() -> Iterator[None]:
    """Inside, the dispatch modes that are active now see the operators of functions, where they are
    recorded, as they see others elsewhere."""
    token = _SEE_FUNCTIONS.set(_C._len_torch_dispatch_stack())
    try:
        yield
    finally:
        _SEE_FUNCTIONS.reset(token)


class _Recording:
    """A forward that is recorded, whose backward is to come.

    Attributes:
        leaves: whose gradients there are.
        outputs: the tensors among what the graph gives, each once.
    """

    def __init__(
        self,
        tape: Tape,
        leaves: Sequence[torch.Tensor],
        made: Any,
        borders: RecordedBorders | None,
        names: Sequence[str],
    ) -> None:
        self.tape = tape
        self.leaves = leaves
        self._borders = borders
        self._names = names
        flat, self.spec = pytree.tree_flatten(made)
        self.outputs = [*{id(t): t for t in flat if isinstance(t, torch.Tensor)}.values()]
        numbers = {id(tensor): number for number, tensor in enumerate(self.outputs)}
        self.places = [_Place(numbers[id(t)]) if id(t) in numbers else t for t in flat]

    def backward(
        self, tangents: Sequence[torch.Tensor | None], keeps: bool
    ) -> tuple[list[torch.Tensor | None], BoxedProgram | str | None]:
        """The gradients of the leaves, by autograd, which sees for itself whether something has
        changed; and what was recorded, the first time, or why nothing was."""
        count = len(self.outputs)
        given = [
            (o, t) for o, t in zip(self.outputs, tangents[:count], strict=True) if t is not None
        ]
        is_first = not self.tape.is_backward
        if self._borders is not None:
            kept = zip(self._names, tangents[count:], strict=False)
            self._borders.kept = {name: own for name, own in kept if own is not None}
        with self.tape.backward(tangents) if is_first else nullcontext():
            found = torch.autograd.grad(
                [output for output, _ in given],
                self.leaves,
                [tangent for _, tangent in given],
                retain_graph=keeps,
                allow_unused=True,
            )
        gradients: list[torch.Tensor | None] = [*found]
        leaves = [*self.leaves]
        if self._borders is not None:
            passed, self._borders.found = self._borders.found, {}
            if self._borders.gives:
                gradients += map(passed.get, self._names)
                leaves += [passed.get(name, tangents[0]) for name in self._names]  # type: ignore[misc]
            self.tape.reason = self.tape.reason or self._borders.reason
        if not is_first:
            return gradients, None
        try:
            return gradients, self.tape.program(self.outputs, tangents, leaves, gradients)
        except NotRecordedError as error:
            return gradients, str(error)


@dataclass(frozen=True)
class _Place:
    """The number of a tensor among outputs."""

    number: int


@dataclass(frozen=True)
class _Known:
    """A program, and where what it gives is in what the graph gives."""

    program: BoxedProgram
    spec: Any
    places: Sequence[Any]


class BoxedCall:
    """One step, of which forward runs, and then backward: what the latter needs.

    Attributes:
        spec: what the graph gives, as ``leaves`` are in it.
    """

    def __init__(
        self,
        boxed: BoxedStep,
        known: _Known | None,
        key: Any,
        values: Sequence[Any],
        trained: Trained,
        again: Again,
        borders: Borders | None = None,
    ) -> None:
        self.boxed = boxed
        self.borders = borders
        self._known = known
        self.program = None if known is None else known.program
        self.trained = trained
        self.spec: Any = None
        self._key = key
        self._values: Sequence[Any] | None = values
        self._again: Again | None = again
        self._places: Sequence[Any] = ()
        self._recording: _Recording | None = None
        self._saved: list[torch.Tensor] = []
        self._held: list[torch.Tensor] = []
        self._versions: list[Any] = []

    def leaves(self, made: Sequence[torch.Tensor]) -> list[Any]:
        """What the graph gives, of these outputs."""
        return [made[p.number] if isinstance(p, _Place) else p for p in self._places]

    def forward(self) -> tuple[list[torch.Tensor], Sequence[int]]:
        """The outputs, and the numbers of those without gradients."""
        assert self._values is not None
        program = self.program
        if program is None:
            recording = self._recording = self.boxed.record(
                self._values, self.trained, self.borders
            )
            self.spec, self._places = recording.spec, recording.places
            outputs = [output.detach() for output in recording.outputs]
            constant = [n for n, o in enumerate(recording.outputs) if not o.requires_grad]
        else:
            assert self._known is not None
            self.spec, self._places = self._known.spec, self._known.places
            with self.boxed.below_autograd:
                made = program.forward(*self._values)
            count = program.outputs
            outputs, self._saved = [*made[:count]], [*made[count:]]
            constant = [*program.constant]
            # Not the outputs themselves, which have the node that has this.
            own = {id(outputs[number]): outputs[number].detach() for number in program.held}
            self._held = [*own.values()]
            if own:
                self._saved = [own.get(id(tensor), tensor) for tensor in self._saved]
        self._versions = self.boxed.versions(self._values, self._held)
        return outputs, constant

    def given(self, gate: torch.Tensor | None, given: Given) -> Given:
        """See ``NodeCall``."""
        return given if self.borders is None else self.borders.given(gate, given)

    def backward(
        self,
        tangents: Sequence[torch.Tensor | None],
        given: Given,
        *,
        keeps: bool = False,
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of what is trained, but for those that are ``given`` meanwhile. With
        ``keeps`` it may run again."""
        if self._values is None:
            raise freed_error()
        taken = () if self.borders is None else self.borders.taken()
        tangents = [*tangents, *taken]
        del taken
        if not self.boxed.is_alone:
            tangents = laid_out(tangents, None if self.program is None else self.program.tangents)
        try:
            gradients = self._gradients(tangents, keeps, given)
        except BaseException:
            if self.borders is not None:
                self.borders.put_back()
            raise
        if not keeps:
            self._values = self._again = self._recording = None
            self._held = []
        return gradients

    def _gradients(
        self, tangents: list[torch.Tensor | None], keeps: bool, given: Given
    ) -> Sequence[torch.Tensor | None]:
        """Those of the leaves. What runs has the tangents alone, and lets go of them."""
        assert self._values is not None
        program, recording = self.program, self._recording
        differentiable = torch.is_grad_enabled()
        if recording is not None and not differentiable:
            gradients, found = recording.backward(tangents, keeps)
            if isinstance(found, str):
                self.boxed._give_up(found)
            elif found is not None:
                self.boxed.keep(self._key, found, recording)
            return given.rest(gradients)
        alike = program is not None and program.is_for(tangents)
        if not alike:  # which the next step records
            self.boxed.forget(self._key)
        if differentiable or not alike:
            self._check_versions(range(len(self._values)))
            if self.borders is not None:
                self.borders.put_back()
            return self._by_autograd(tangents, differentiable)
        assert program is not None
        self._check_versions(program.needs)
        held = [self._values[number] for number in program.needs]
        held += self._saved
        held += [tangent for tangent in tangents if tangent is not None]
        tangents.clear()
        if self.borders is not None:
            self.borders.let_go()
        if not keeps:
            self._saved = []
        with self.boxed.below_autograd:
            rest = program.backward(held, given)
        return given.rest(rest)

    def _by_autograd(
        self, tangents: Sequence[torch.Tensor | None], differentiable: bool
    ) -> Sequence[torch.Tensor | None]:
        assert self._again is not None
        with torch.enable_grad(), autocast_off(current_autocast()):
            made = self._again()
        seen = {id(t): t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)}
        own = tangents[: len(seen)]
        given = [(o, t) for o, t in zip(seen.values(), own, strict=True) if t is not None]
        return torch.autograd.grad(
            [output for output, _ in given],
            self.trained.tensors,
            [tangent for _, tangent in given],
            allow_unused=True,
            create_graph=differentiable,
        )

    def _check_versions(self, needs: Sequence[int]) -> None:
        assert self._values is not None
        before, now = self._versions, self.boxed.versions(self._values, self._held)
        if before != now and self.boxed.is_changed(before, now, needs):
            raise changed_error()


def _getter(numbers: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(numbers) < 2:
        return lambda values: [values[number] for number in numbers]
    return itemgetter(*numbers)


def _kind_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    return type(value), value


def _version_of(value: Any) -> int | None:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None
