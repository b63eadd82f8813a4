"""A model as a whole and in 2, 4, ... micro-batches, each made once for all machines."""

from __future__ import annotations

from tensoropt_torch.batches import BatchSplits, batch_rows, doubled
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.planner.task import PlanningTask

log = get_logger(__name__)


class Parts:
    """The captured model by its number of micro-batches, ``counts``: up to ``most`` of them, as far
    as they divide the rows of the batch, or 1 alone for a model that has to see its whole batch at
    once (``why_whole`` says why)."""

    def __init__(self, task: PlanningTask, most: int) -> None:
        self._splits = BatchSplits(task.captured, task.whole_inputs)
        self._made = {1: task.captured}
        self.rows = batch_rows(task.captured, task.whole_inputs)
        self.why_whole = ""
        divides = (count for count in doubled(most) if self.rows and self.rows % count == 0)
        self.counts = [1, *divides]
        if len(self.counts) > 1:
            try:
                self.at(2)
            except TensorOptError as error:
                log.info("not in micro-batches: %s", error)
                self.counts, self.why_whole = [1], str(error)

    def at(self, count: int) -> CapturedModel:
        """In so many of them, one of ``counts``."""
        if count not in self._made:
            self._made[count] = self._splits.of(count)
        return self._made[count]
