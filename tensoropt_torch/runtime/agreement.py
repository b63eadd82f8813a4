"""Errors that all ranks see: a failing rank does not leave the others waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.lost_ranks import LostRanksError, waiting

T = TypeVar("T")


class Model(Protocol):
    """What tells a captured model from others."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal graphs under equal rules."""

    @property
    def declarations(self) -> Sequence[str]:
        """The rules that the user registered for its operators, as text."""


def is_distributed() -> bool:
    """Whether more than one process runs in the default process group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(item: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """The item of every rank of a group, by default of the job, by rank. Collective in it."""
    if not is_distributed():
        return [item]
    items: list[T | None] = [None] * dist.get_world_size(group)
    with waiting():
        dist.all_gather_object(items, item, group=group)
    return [i for i in items if i is not None]


class FailedRankError(RuntimeError):
    """Another rank has failed, by no mistake of the user's that is known as one."""


def on_all_ranks(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run ``action`` on every rank of a group, by default of the job; if it fails on any, fail on
    all.

    Collective in it. A user's mistake (``ValueError``) is raised as TensorOptError
    that names the rank it comes from, anything else as FailedRankError.
    """
    result: T | None = None
    error: Exception | None = None
    try:
        result = action()
    except LostRanksError:  # the others cannot be told
        raise
    except Exception as caught:
        error = caught
    reports = gather((isinstance(error, ValueError), _told(error)), group)
    failed = [rank for rank, (_, text) in enumerate(reports) if text]
    if error is None and not failed:
        return result  # type: ignore[return-value]
    if error is not None and (not is_distributed() or len(failed) == len(reports)):
        raise error
    rank = failed[0]
    user_mistake, text = reports[rank]
    kind = TensorOptError if user_mistake else FailedRankError
    raise kind(f"rank {rank}: {text}") from error


def _told(error: Exception | None) -> str:
    """To other ranks: what is wrong, and of what no user's mistake is its kind, which no error of
    theirs has."""
    if error is None:
        return ""
    kind = type(error).__name__
    return str(error) or kind if isinstance(error, ValueError) else f"{error} ({kind})".strip()


def agree_or_raise(what: str, value: str, try_this: str) -> None:
    """Raise TensorOptError on every rank unless all have the same ``value``."""
    values = gather(value)
    other = next((rank for rank, v in enumerate(values) if v != values[0]), None)
    if other is not None:
        raise TensorOptError(
            f"the {what} differs between ranks: rank 0 has {values[0]}, rank {other} has "
            f"{values[other]}; {try_this}"
        )


class DifferentCallsError(Exception):
    """The ranks make different calls of a module: raised on all of them."""


class PendingAgreement:
    """Whether all ranks gave the same numbers, asked for but not waited for."""

    def __init__(self, ends: torch.Tensor | None = None, work: dist.Work | None = None) -> None:
        self._ends = ends
        self._work = work

    def is_reached(self) -> bool:
        """Waits for the other ranks."""
        if self._ends is None:
            return True
        if self._work is not None:
            with waiting():
                self._work.wait()
            self._work = None
        most, least = self._ends.tolist()
        return all(one == -other for one, other in zip(most, least, strict=True))


class CallAgreement:
    """Whether all ranks make the same call of a module.

    Has a process group of its own, on CPUs, so that a rank which goes another way meets the
    others here and not in the middle of a step; None in a job of one process. Its methods are
    collective.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    @property
    def is_needed(self) -> bool:
        """Whether there are other ranks."""
        return self._group is not None

    def begin(self, *numbers: int) -> PendingAgreement:
        """Whether all ranks give the same numbers, below 2**62."""
        if self._group is None:
            return PendingAgreement()
        ends = torch.tensor([numbers, [-number for number in numbers]])
        work = dist.all_reduce(ends, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return PendingAgreement(ends, work)

    def most(self, number: int) -> int:
        """The largest number of all ranks."""
        if self._group is None:
            return number
        found = torch.tensor([number])
        with waiting():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return int(found)

    def exchange(self, item: T) -> list[T]:
        """The item of every rank, by rank."""
        if self._group is None:
            return [item]
        items: list[Any] = [None] * dist.get_world_size()
        with waiting():
            dist.all_gather_object(items, item, group=self._group)
        return items


_PENDING: ContextVar[PendingAgreement | None] = ContextVar("pending_agreement", default=None)


@contextmanager
def confirming(pending: PendingAgreement | None) -> Iterator[None]:
    """Inside, ``confirm_call`` waits for this agreement.

    Raises:
        DifferentCallsError: on every rank, unless all make the same call; also where this rank
            meets an error before it has waited, which then is what the others wait to hear.
    """
    token = _PENDING.set(pending)
    try:
        yield
    except (DifferentCallsError, LostRanksError):
        raise
    except Exception as error:
        if pending is not None and not pending.is_reached():
            raise DifferentCallsError from error
        raise
    finally:
        _PENDING.reset(token)


def confirm_call() -> None:
    """Stands in graphs of ranks before the first call that other ranks take part in, or that
    changes anything: computing goes on until then, while the ranks agree on the call.

    Raises:
        DifferentCallsError: on every rank, unless all make the same call.
    """
    pending = _PENDING.get()
    if pending is not None and not pending.is_reached():
        raise DifferentCallsError


def agree_on_model(model: Model) -> None:
    """Raise TensorOptError on every rank unless all have captured the same model,
    under the same registered rules. Collective."""
    rules = "; ".join(model.declarations) or "none"
    agree_or_raise(
        "set of rules registered for operators of the model",
        rules,
        "call register_rule with the same arguments on every rank, before planning",
    )
    agree_or_raise("model", model.fingerprint, "pass the same model and inputs on every rank")


def from_first_rank(compute: Callable[[], T]) -> T:
    """Compute on rank 0 and give the result to all; its errors reach all too."""
    if not is_distributed():
        return compute()
    first = dist.get_rank() == 0
    result = on_all_ranks(lambda: compute() if first else None)
    holder = [result]
    with waiting():
        dist.broadcast_object_list(holder, 0)
    assert holder[0] is not None
    return holder[0]
