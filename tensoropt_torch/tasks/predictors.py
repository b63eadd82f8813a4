"""What a memory limit is compared with, as far as that can be found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tensoropt_torch.logs import get_logger
from tensoropt_torch.planner.memory_limits import Predictor
from tensoropt_torch.simulate import NotSimulatedError

log = get_logger(__name__)

T = TypeVar("T")


def by_memory(
    predictor: Predictor | None, by_peaks: Callable[[], T], by_sums: Callable[[], T]
) -> T:
    """What the predictor asks for; of None ``by_peaks``, or ``by_sums`` with a line in the log
    where a step cannot be simulated.

    Raises:
        TensorOptError: that of the function.
    """
    if predictor == "sums":
        return by_sums()
    try:
        return by_peaks()
    except NotSimulatedError as error:
        if predictor is not None:
            raise
        log.warning("the memory limit is compared with sums: %s", error)
        return by_sums()
