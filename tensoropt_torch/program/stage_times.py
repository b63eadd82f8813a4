"""When the stages of a pipeline do what their schedules say: the lists of actions, run with given
times instead of tensors.

::

    times = StageTimes(forward_s=(1.0, 1.0), backward_s=(2.0, 2.0))
    timeline(one_forward_one_backward(2, 4), times).step_s     # (4 + 2 - 1) * 3 = 15
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.program.stage_schedules import (
    ReceiveGradients,
    ReceiveValues,
    RunBackward,
    RunForward,
    SendGradients,
    SendValues,
    StageAction,
    StageSchedule,
    Transfer,
)


@dataclass(frozen=True)
class StageTimes:
    """What things take. Parts are numbered along the graph.

    Attributes:
        forward_s, backward_s: of a micro-batch, by part.
        values_s, gradients_s: to send what goes from each part to the next one, and back; empty:
            nothing.
        step_s: of each stage at the end of a step, such as for sums of gradients; empty: nothing.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    values_s: tuple[float, ...] = ()
    gradients_s: tuple[float, ...] = ()
    step_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Span:
    """A forward or backward of a stage, and when it runs."""

    stage: int
    action: RunForward | RunBackward
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """A step.

    Attributes:
        step_s: when the last stage is done.
        spans: in the order in which they begin in each stage.
        busy_s: by stage, what its forwards and backwards take.
        in_flight: by stage, the most forwards whose backward is to come.
    """

    step_s: float
    spans: tuple[Span, ...] = field(repr=False)
    busy_s: tuple[float, ...]
    in_flight: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """The share of the step in which the stage that does most computes nothing."""
        return 1 - max(self.busy_s) / self.step_s if self.step_s > 0 else 0.0


def timeline(schedules: Sequence[StageSchedule], times: StageTimes) -> Timeline:
    """When all stages do what.

    Raises:
        TensorOptError: stages wait for each other for ever; says for what.
    """
    return _Run(schedules, times).result()


class _Run:
    """All stages, each of which goes through its list until it waits."""

    def __init__(self, schedules: Sequence[StageSchedule], times: StageTimes) -> None:
        self._schedules = schedules
        self._times = times
        self._stages = len(schedules)
        self._now = [0.0] * self._stages
        self._next = [0] * self._stages
        self._spans: list[Span] = []
        self._arrived: dict[StageAction, float] = {}  # by what receives it, of a part
        self._free: defaultdict[tuple[int, bool], float] = defaultdict(float)  # links

    def result(self) -> Timeline:
        while sum(self._advance(stage) for stage in range(self._stages)):
            pass  # each of them is asked once more, whatever the others do
        waiting = [
            f"stage {s.stage} for {s.actions[at]}"
            for s, at in zip(self._schedules, self._next, strict=True)
            if at < len(s.actions)
        ]
        if waiting:
            raise TensorOptError(f"stages wait for each other: {'; '.join(waiting)}")
        ends = [
            now + (self._times.step_s[stage] if self._times.step_s else 0.0)
            for stage, now in enumerate(self._now)
        ]
        busy = [0.0] * self._stages
        for span in self._spans:
            busy[span.stage] += span.end_s - span.begin_s
        flights = tuple(schedule.in_flight for schedule in self._schedules)
        return Timeline(max(ends), tuple(self._spans), tuple(busy), flights)

    def _advance(self, stage: int) -> bool:
        """Whether the stage could do something."""
        actions = self._schedules[stage].actions
        start = self._next[stage]
        while self._next[stage] < len(actions) and self._does(stage, actions[self._next[stage]]):
            self._next[stage] += 1
        return self._next[stage] > start

    def _does(self, stage: int, action: StageAction) -> bool:
        if isinstance(action, RunForward | RunBackward):
            is_forward = isinstance(action, RunForward)
            times = self._times.forward_s if is_forward else self._times.backward_s
            begin = self._now[stage]
            self._now[stage] += times[self._part(stage, action.chunk)]
            self._spans.append(Span(stage, action, begin, self._now[stage]))
        elif isinstance(action, SendValues | SendGradients):
            self._send(stage, action)
        elif isinstance(action, ReceiveValues | ReceiveGradients):
            arrival = self._arrived.get(self._of_part(stage, action))
            if arrival is None:
                return False
            self._now[stage] = max(self._now[stage], arrival)
        return True

    def _part(self, stage: int, chunk: int) -> int:
        return chunk * self._stages + stage

    def _of_part(self, stage: int, action: Transfer) -> StageAction:
        return type(action)(action.micro_batch, self._part(stage, action.chunk))

    def _send(self, stage: int, action: SendValues | SendGradients) -> None:
        """A transfer begins when those before it on the same link have ended."""
        part = self._part(stage, action.chunk)
        is_values = isinstance(action, SendValues)
        boundary = part if is_values else part - 1
        durations = self._times.values_s if is_values else self._times.gradients_s
        link = (boundary, is_values)
        begin = max(self._now[stage], self._free[link])
        self._free[link] = begin + (durations[boundary] if durations else 0.0)
        number = action.micro_batch
        receives = (
            ReceiveValues(number, part + 1) if is_values else ReceiveGradients(number, part - 1)
        )
        self._arrived[receives] = self._free[link]
