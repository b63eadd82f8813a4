"""What goes from stage to stage in one step: sent without waiting, and expected one ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from tensoropt_torch.program.stage_schedules import (
    ReceiveGradients,
    ReceiveValues,
    SendGradients,
    SendValues,
    StageAction,
    StageSchedule,
    Transfer,
)
from tensoropt_torch.runtime.lost_ranks import waiting
from tensoropt_torch.runtime.stage_groups import StageGroups

# The memory that the tensors of a transfer are received in.
Memory = Callable[[Transfer], Sequence[torch.Tensor]]
MOST_VALUES = 4096


@dataclass
class _Expected:
    action: Transfer
    tensors: Sequence[torch.Tensor]
    works: Sequence[dist.Work]


class StageTransfers:
    """Of one step of one rank, which does these actions of its ``schedule`` in their order.

    Args:
        memory: makes that of what is received.
    """

    def __init__(
        self,
        schedule: StageSchedule,
        actions: Sequence[StageAction],
        groups: StageGroups,
        memory: Memory,
    ) -> None:
        self._schedule = schedule
        self._groups = groups
        self._memory = memory
        self._sent: dict[SendValues | SendGradients, list[tuple[dist.Work, torch.Tensor]]] = {}
        kinds = (ReceiveValues, ReceiveGradients)
        self._to_come: Mapping[type[Transfer], deque[Transfer]] = {
            kind: deque(a for a in actions if isinstance(a, kind)) for kind in kinds
        }
        self._expected: dict[type[Transfer], _Expected | None] = dict.fromkeys(kinds)
        for kind in kinds:
            self._expect(kind)

    def _expect(self, kind: type[Transfer]) -> None:
        """The next one, if there is one."""
        self._expected[kind] = None
        if not self._to_come[kind]:
            return
        action = self._to_come[kind].popleft()
        tensors = self._memory(action)
        stage, group, tag = self._way(action)
        works = [
            begun(dist.irecv(tensor, group=group, tag=tag + index, group_src=stage))
            for index, tensor in enumerate(tensors)
            if tensor.numel()
        ]
        self._expected[kind] = _Expected(action, tensors, works)

    def received(self, action: ReceiveValues | ReceiveGradients) -> Sequence[torch.Tensor]:
        """What an action waits for; what comes after it is expected from now on. With gradients of
        what was sent, that has arrived."""
        expected = self._expected[type(action)]
        assert expected is not None and expected.action == action, (expected, action)
        with waiting():
            for work in expected.works:
                work.wait()
        if isinstance(action, ReceiveGradients):
            self._await(SendValues(action.micro_batch, action.chunk))
        self._expect(type(action))
        return expected.tensors

    def send(self, action: SendValues | SendGradients, tensors: Sequence[torch.Tensor]) -> None:
        """Begins to send these, whose memory nobody changes till all has arrived."""
        stage, group, tag = self._way(action)
        if isinstance(action, SendGradients) and self._schedule.chunks == 1:
            # But for the last one: the stage before takes gradients in this order, whatever this
            # one does later.
            for earlier in [a for a in self._sent if isinstance(a, SendGradients)][:-1]:
                self._await(earlier)
        with waiting():  # for who is gone already
            self._sent[action] = [
                (begun(dist.isend(tensor, group=group, tag=tag + index, group_dst=stage)), tensor)
                for index, tensor in enumerate(tensors)
                if tensor.numel()
            ]

    def await_sends(self) -> None:
        """Till all has arrived."""
        for action in list(self._sent):
            self._await(action)

    def _await(self, action: SendValues | SendGradients) -> None:
        """Till what was sent has arrived, whose memory is free then."""
        with waiting():
            for work, _ in self._sent.pop(action, ()):
                work.wait()

    def _way(self, action: Transfer) -> tuple[int, dist.ProcessGroup, int]:
        """The other stage, the group, and the tag of the first tensor."""
        stages, stage = self._schedule.stages, self._schedule.stage
        part = action.chunk * stages + stage
        ends = {
            SendValues: (part, part + 1),
            ReceiveValues: (part - 1, part),
            SendGradients: (part, part - 1),
            ReceiveGradients: (part + 1, part),
        }[type(action)]
        is_gradient = isinstance(action, SendGradients | ReceiveGradients)
        first = min(ends)
        wraps = first % stages == stages - 1
        other = ends[1] if ends[0] == part else ends[0]
        parts = stages * self._schedule.chunks
        tag = (action.micro_batch * parts + first) * 2 + is_gradient
        return other % stages, self._groups.between(is_gradient, wraps), tag * MOST_VALUES


def begun(work: dist.Work | None) -> dist.Work:
    """Of this process, which is in the group."""
    assert work is not None
    return work
