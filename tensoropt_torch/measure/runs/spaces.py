"""The strategies of a task on one number of devices, as those see them who compare what is
predicted with what is measured."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from tensoropt_torch import _C
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.plan import Settings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

# So much longer collectives tell how many there are.
TINY_S = 1e-9


@dataclass(frozen=True)
class Space:
    """The strategies of the model in some number of micro-batches."""

    captured: CapturedModel
    settings: Settings
    core: _C.SearchSpace
    _slower: Settings  # with collectives that take ``TINY_S`` longer

    def network(self, strategy: _C.Strategy) -> tuple[float, float]:
        """Predicted: time of the network in s, and how many collectives there are."""
        network_s = self.core.network_time(strategy)
        return network_s, (self._slower_core.network_time(strategy) - network_s) / TINY_S

    @cached_property
    def _slower_core(self) -> _C.SearchSpace:
        return make_space(self.captured, self._slower)


def spaces_of(
    task: PlanningTask, num_devices: int, micro_batches: Collection[int] | None = None
) -> list[Space]:
    """One for each number of micro-batches of the task, or for those that are named, the whole
    batch first."""
    collective_s = task.cluster.device.runtime.collective_s + TINY_S
    slower = task.with_runtime(collective_s=collective_s)
    return [
        Space(captured, settings, make_space(captured, settings), slower_settings)
        for (captured, settings), (_, slower_settings) in zip(
            task.graphs(num_devices), slower.graphs(num_devices), strict=True
        )
        if micro_batches is None or captured.micro_batches in micro_batches
    ]
