"""Schedules are lists, of which only those are made that a step can follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.program.schedule import (
    ADDING,
    KEEPING,
    PLAIN,
    AddKept,
    Backward,
    Deliver,
    Forward,
    Hold,
    Join,
    ReduceGradients,
    Release,
    Schedule,
    in_micro_batches,
    without_gradients,
)


def test_micro_batches_run_forward_and_backward_one_after_the_other() -> None:
    first = (Forward(0), Backward(0, reduces=False))
    assert in_micro_batches(2) == Schedule(
        (Hold(), *first, Forward(1), Backward(1), Release(), ReduceGradients(), Join()),
        (Deliver(),),
    )


def test_what_passes_have_kept_is_looked_at_where_there_may_be_some() -> None:
    assert in_micro_batches(2, adds_kept=True).backward == (AddKept(), Deliver())
    assert not in_micro_batches(2).adds_kept and not PLAIN.adds_kept


def test_micro_batches_that_keep_reduce_nothing() -> None:
    schedule = in_micro_batches(3, reduces=False)
    assert not schedule.reduces
    backwards = [action for action in schedule.call if isinstance(action, Backward)]
    assert backwards == [Backward(number, reduces=False) for number in range(3)]
    assert ReduceGradients() not in schedule.call
    assert schedule.backward == (AddKept(), Deliver(keeps=True))


@pytest.mark.parametrize(
    ("schedule", "reduces", "adds_kept"),
    [(PLAIN, True, False), (KEEPING, False, True), (ADDING, True, True)],
)
def test_a_lone_forward_leaves_backward_to_autograd(
    schedule: Schedule, reduces: bool, adds_kept: bool
) -> None:
    assert schedule.is_lone and not schedule.makes_gradients
    assert schedule.reduces == reduces
    assert schedule.adds_kept == adds_kept


def test_forwards_alone_make_no_gradients() -> None:
    schedule = without_gradients(4)
    assert schedule.micro_batches == 4
    assert not schedule.makes_gradients and not schedule.backward
    assert without_gradients(1).is_lone


SOUND = (Hold(), Forward(0), Forward(1), Backward(0, reduces=False), Backward(1), Join())
DELIVERED = (Deliver(),)


def test_other_orders_are_schedules_as_well() -> None:
    assert Schedule(SOUND, DELIVERED).micro_batches == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ((Hold(), Forward(0), Forward(2)), "micro-batches [0, 2]"),
        ((Hold(), Forward(0), Forward(0)), "micro-batches [0, 0]"),
        ((Join(),), "micro-batches []"),
        ((Hold(), Backward(0), Forward(0)), "has no forward before it"),
        ((*SOUND, Backward(1)), "has no forward before it"),
        (SOUND[:-2], "micro-batches [1] have no backward"),
        ((*SOUND[:3], Backward(0), *SOUND[4:]), "to which later ones add"),
        (SOUND[1:], "begins by Hold()"),
    ],
)
def test_a_list_that_no_step_can_follow_is_refused(call: tuple[object, ...], words: str) -> None:
    with pytest.raises(TensorOptError, match="no step is like this") as error:
        Schedule(call, DELIVERED)  # type: ignore[arg-type]
    assert words in str(error.value)


def test_gradients_of_a_call_are_delivered_as_they_were_reduced() -> None:
    for wrong in ((), (Deliver(keeps=True),), (Deliver(), Deliver())):
        with pytest.raises(TensorOptError, match="delivered once"):
            replace(Schedule(SOUND, DELIVERED), backward=wrong)
