"""Timelines of steps, by figures that were worked out by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tensoropt_torch.telling.collectives import Collectives
from tensoropt_torch.telling.description import PlanDescription
from tensoropt_torch.telling.details import PlanDetails
from tensoropt_torch.telling.timeline import COPIES, Span, Timeline, timeline_of


def moved(what: str, time_s: float) -> Collectives:
    return Collectives("all_gather", what, 8, ("nvlink",), 1, 1.0, time_s)


def timeline(collectives: list[Collectives], waited: float, again: float = 0.0) -> Timeline:
    time = {"operators": 9.0, "updates of parameters": 1.0, "reshards and collectives": waited}
    time |= {"operators again in backward": again} if again else {}
    description = PlanDescription((8,), (), 0, 0, {})
    found = timeline_of(PlanDetails(description, (), tuple(collectives), {}, time, {}, ()))
    return Timeline(rounded(found.device), rounded(found.network), found.time_s)


def rounded(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    return tuple(
        replace(s, start_s=round(s.start_s, 9), seconds=round(s.seconds, 9)) for s in spans
    )


def check(found: Timeline) -> None:
    """What the device does has no gaps; what is not hidden is moved while the device waits."""
    assert found.device[0].start_s == 0
    for one, other in itertools.pairwise(found.device):
        assert one.start_s + one.seconds == pytest.approx(other.start_s)
    last = found.device[-1]
    assert last.start_s + last.seconds == pytest.approx(found.time_s)
    waited = sum(span.seconds for span in found.network if not span.hidden)
    assert waited == pytest.approx(found.waited_s)


def test_collectives_that_are_waited_for_are_drawn_as_they_are() -> None:
    found = timeline([moved("activations", 0.5), moved("gradients of parameters", 1.5)], 2.0)
    check(found)
    assert found.device == (
        Span("forward", 0.0, 3.0),
        Span("waits for the network", 3.0, 0.5),
        Span("backward", 3.5, 6.0),
        Span("waits for the network", 9.5, 1.5),
        Span("update", 11.0, 1.0),
    )
    assert found.network == (
        Span("activations", 3.0, 0.5),
        Span("parameters and their gradients", 9.5, 1.5),
    )
    assert found.hidden_s == 0


def test_what_is_not_waited_for_of_parameters_is_hidden() -> None:
    collectives = [
        moved("parameters", 2.0),
        moved("parameters again in backward", 2.0),
        moved("gradients of parameters", 4.0),
        moved("activations", 1.0),
    ]
    found = timeline(collectives, 3.0, again=0.5)
    check(found)
    # Of 8 s for parameters 2 are waited for, a quarter of each.
    assert found.network[:2] == (
        Span("parameters", 1.5, 1.5, True),
        Span("parameters", 3.0, 0.5),
    )
    assert found.hidden_s == pytest.approx(6.0)
    assert Span("operators again", 4.5, 0.5) in found.device


def test_nothing_is_hidden_behind_nothing() -> None:
    found = timeline([moved("parameters", 30.0)], 1.0)
    check(found)
    assert found.network[0] == Span("parameters", 0.0, 3.0, True)


def test_waits_without_reshards_are_those_of_operators() -> None:
    found = timeline([], 3.0)
    check(found)
    assert {span.name for span in found.network} == {COPIES}


def test_what_is_waited_for_beyond_collectives_has_a_piece_of_its_own() -> None:
    found = timeline([moved("parameters", 1.0), moved("activations", 0.5)], 2.0)
    check(found)
    assert found.network == (
        Span("parameters", 3.0, 1.0),
        Span("activations", 4.0, 0.5),
        Span(COPIES, 4.5, 0.5),
    )
    assert found.hidden_s == 0


def test_without_waits_the_device_computes() -> None:
    found = timeline([], 0.0)
    check(found)
    assert [span.name for span in found.device] == ["forward", "backward", "update"]
    assert found.network == ()
