"""The captured graph is compared with the module, at the first training call, on rank 0.

What capture does not see is lost without a trace: here it becomes an error, whatever it was.

::

    check = CaptureCheck.make(model, wanted, earlier)   # on all ranks
    check.run(variant.captured, call, dims, modules)    # where they agree on the call
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch.calls.batch_comparison import BatchComparison, NotComparedError, no_values
from tensoropt_torch.calls.call_kind import ModuleCall
from tensoropt_torch.calls.few_rows import Dims
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.comparison import Difference
from tensoropt_torch.logs import get_logger
from tensoropt_torch.runtime.agreement import from_first_rank
from tensoropt_torch.units import format_seconds

log = get_logger(__name__)

_AUTOGRAD: Any = torch._C._autograd
SHOWN = 4  # differences that an error names


class ComparedBefore(Protocol):
    """Whether a graph was compared with its module by an earlier job."""

    def load(self) -> bool:
        """Whether it was."""

    def keep(self) -> None:
        """It was compared."""


@dataclass(frozen=True)
class Verdict:
    """What came of a comparison: an error, or None, whether nothing could be said, and whether it
    is to be made at a later call."""

    error: str | None = None
    compared: bool = True
    later: bool = False


class CaptureCheck:
    """Compares once, at the first training call. Its methods are collective.

    Args:
        model: on rank 0, until it has been compared; None elsewhere, and if it is not due.
        due: the same on all ranks.
        earlier: what is known of earlier jobs, of rank 0.
    """

    def __init__(
        self, model: nn.Module | None, due: bool, earlier: ComparedBefore | None = None
    ) -> None:
        self._model = model
        self._due = due
        self._earlier = earlier
        self._error: str | None = None

    @staticmethod
    def make(model: nn.Module, wanted: bool, earlier: ComparedBefore | None) -> CaptureCheck:
        """A check of the graphs of ``model``, if it is ``wanted`` on all ranks alike."""
        if not wanted:
            return CaptureCheck(None, due=False)
        due = from_first_rank(lambda: (_is_due(model, earlier),))[0]
        holds = due and dist.get_rank() == 0
        return CaptureCheck(model if holds else None, due, earlier if holds else None)

    def run(
        self,
        captured: CapturedModel,
        call: ModuleCall,
        shared: Dims,
        stand_ins: Mapping[tuple[str, bool], nn.Module],
    ) -> None:
        """Compares, if this is the first call with gradients.

        Args:
            captured: the graph that the call runs.
            call: that all ranks make.
            shared: the dims along which each rank has its own share of the inputs.
            stand_ins: of the modules, by path, with their attributes as they are.

        Raises:
            TensorOptError: on every rank; the graph computes something else.
        """
        if not self._due or not call.kind.context.gradients:
            return
        if self._error is None:
            ranks = dist.get_world_size()
            verdict = from_first_rank(
                lambda: self._verdict((captured, call, shared, ranks, stand_ins))
            )
            if verdict.later:
                return
            self._error = verdict.error
        if self._error is not None:
            raise TensorOptError(self._error)
        self._due, self._model = False, None

    def _verdict(self, what: tuple[Any, ...]) -> Verdict:
        """Of the arguments of a comparison. Where somebody counts what a call saves, as a
        checkpoint around the module does, it waits for a call where nobody does."""
        assert self._model is not None
        if _AUTOGRAD._top_saved_tensors_default_hooks(True) is not None:
            log.info("the captured graph is compared at a call outside of checkpoints")
            return Verdict(compared=False, later=True)
        start = time.perf_counter()
        try:
            how, found = BatchComparison(self._model, *what).made()
        except NotComparedError as reason:
            _say_not_compared(self._model, str(reason))
            return Verdict(compared=False)
        except Exception as error:  # of the comparison: training goes on without it
            _say_not_compared(self._model, f"{type(error).__name__}: {error}")
            return Verdict(compared=False)
        seconds = format_seconds(time.perf_counter() - start)
        if found:
            return Verdict(_message(self._model, how, found))
        log.info("the captured graph computes what the module does, %s: %s", how, seconds)
        if self._earlier is not None:
            self._earlier.keep()
        return Verdict()


def _is_due(model: nn.Module, earlier: ComparedBefore | None) -> bool:
    reason = no_values(model)
    if reason is not None:
        log.info("the captured graph is not compared with the module: %s", reason)
        return False
    if earlier is not None and earlier.load():
        log.info("the captured graph was compared with the module by an earlier job")
        return False
    return True


def _say_not_compared(model: nn.Module, reason: str) -> None:
    warnings.warn(
        f"the captured graph was not compared with {type(model).__name__}, which would show "
        f"whether capture has lost something: {reason}; check_capture=False leaves this out",
        stacklevel=2,
    )


def _message(model: nn.Module, how: str, found: Sequence[Difference]) -> str:
    shown = "; ".join(map(str, found[:SHOWN]))
    others = f"; and {len(found) - SHOWN} others" if len(found) > SHOWN else ""
    return (
        f"the captured graph of {type(model).__name__} does not compute what the module computes, "
        f"{how}: {shown}{others}. Likely something acts in forward that is no operator of "
        "PyTorch: a hook, a custom autograd.Function, random numbers of Python or NumPy, a buffer "
        "that is written through its .data, which backward then sees, an attribute or a mode that "
        "has changed since the capture, or a constant that was another one then. Write it with "
        "operators or torch.library.custom_op, or change it before the module is planned; "
        "check_capture=False trains the graph as it is, at your own risk"
    )
