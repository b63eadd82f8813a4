"""Sentences and figures of pages, of costs that were made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensoropt_torch.planner.page_opening import moved_and_waited, opening
from tensoropt_torch.planner.page_others import why_it_does_not_fit
from tensoropt_torch.telling.collectives import Collectives
from tensoropt_torch.telling.description import PlanDescription
from tensoropt_torch.telling.details import PlanDetails
from tensoropt_torch.telling.timeline import timeline_of
from tensoropt_torch.telling.work import WorkShare
from tensoropt_torch.units import format_part, format_share, format_step

GIB = 2.0**30
DETAILS = PlanDetails(
    PlanDescription((8,), (), 0, 0, {}, num_recomputed=2, num_operators=10),
    (),
    (
        Collectives("all_gather", "parameters", 8, ("nvlink",), 1, 8 * GIB, 0.2),
        Collectives("all_reduce", "gradients of activations", 2, ("nvlink",), 1, 2 * GIB, 0.5),
    ),
    {
        "parameters": GIB,
        "gradients": GIB,
        "optimizer state": 2 * GIB,
        "kept for backward": 4 * GIB,
    },
    {
        "operators": 3.0,
        "operators again in backward": 0.25,
        "updates of parameters": 0.05,
        "reshards and collectives": 0.7,
    },
    {},
    (WorkShare({"batch": 8}, 1.0),),
    {"aten.silu.default": 0.25},
    {"parameters": 8 * GIB, "gradients": 8 * GIB, "optimizer state": 16 * GIB},
)


def sentences(details: PlanDetails, peak: float | None = None) -> dict[str, str]:
    at_peak = {"temporaries": 1.5 * GIB, "activations": 4 * GIB} if peak else {}
    return dict(opening(details, timeline_of(details), peak, at_peak, 12 * GIB))


def test_the_opening_says_what_is_stored_runs_again_and_moves() -> None:
    said = sentences(DETAILS, 9.5 * GIB)
    assert said["Work"] == "The work is split by batch over 8 (data parallelism)."
    assert said["Parameters and optimizer state"] == (
        "A device stores 12.5% of the parameters (1.00 GiB of 8.00 GiB), 12.5% of the "
        "gradients (1.00 GiB of 8.00 GiB) and 12.5% of the optimizer state (2.00 GiB of "
        "16.00 GiB). Operators need 8.00 GiB of parameters gathered in a step."
    )
    assert said["Recomputation"] == (
        "25.0% of the time of forward runs again in backward: 2 of 10 operators, 250 ms of a "
        "forward of 1.00 s; most of it aten.silu.default (250 ms)."
    )
    assert said["Memory"].endswith(
        "Its peak, with what lives for a moment only (1.50 GiB temporaries), is 9.50 GiB: 2.50 GiB "
        "of the 12.00 GiB of a device are free."
    )
    assert said["Time"] == (
        "In a step of 4.000 s a device computes for 3.30 s and waits 700 ms for the network."
    )
    of_other_times = "(1.50 GiB temporaries) and without 512 MiB that it keeps at other times, is "
    assert of_other_times in sentences(DETAILS, 9.0 * GIB)["Memory"]
    assert sentences(DETAILS, 13.0 * GIB)["Memory"].endswith(
        " is 13.00 GiB, beyond the 12.00 GiB of a device."
    )
    # An all-gather over 8 receives 7 eighths; an all-reduce over 2 all of its tensor.
    assert said["Network"] == (
        "Most bytes are moved by all-gathers of parameters: a device receives 7.00 GiB in a step, "
        "in 200 ms, and 9.00 GiB by all collectives together. Longest take all-reduces of "
        "gradients of activations: 500 ms."
    )


def test_what_does_not_happen_is_said_to() -> None:
    quiet = replace(DETAILS, run_again={}, collectives=())
    said = sentences(quiet)
    assert said["Recomputation"] == "Nothing runs again in backward."
    assert "peak" not in said["Memory"] and "Network" not in said
    assert sentences(DETAILS, 6 * GIB)["Memory"].endswith(
        "Its peak, not all of it at once, is 6.00 GiB: 6.00 GiB of the 12.00 GiB of a device are "
        "free."
    )


@pytest.mark.parametrize(
    ("waited", "said"),
    [
        (0.8, "a step waits for 800 ms: 100 ms more, for local copies around them"),
        (0.7, "a step waits for 700 ms"),
        (0.1, "a step waits for 100 ms, since others run while it computes"),
    ],
)
def test_what_a_step_waits_for_is_compared_with_its_collectives(waited: float, said: str) -> None:
    time = {**DETAILS.time, "reshards and collectives": waited}
    text = moved_and_waited(replace(DETAILS, time=time))
    assert text.startswith(f"All of these take 700 ms by themselves; {said}")


def test_why_something_does_not_fit_names_its_largest_parts() -> None:
    assert why_it_does_not_fit(DETAILS, 8 * GIB, 6 * GIB) == (
        "does not fit: it keeps at least 8.00 GiB, 2.00 GiB above the limit: 4.00 GiB parameters, "
        "gradients and optimizer state (12.5% of them), 4.00 GiB kept for backward"
    )
    whole = replace(DETAILS, whole={"parameters": GIB, "gradients": GIB, "state": 2 * GIB})
    text = why_it_does_not_fit(whole, 8 * GIB, 9 * GIB)
    assert "keeps at least 8.00 GiB, and its simulated peak is above the limit: " in text
    assert "optimizer state (whole on each device)" in text


def test_predictions_have_as_many_digits_as_are_meant() -> None:
    steps = [1.00351, 0.98741, 0.1, 0.0123456, 12.3456, 1234.5]
    assert [format_step(seconds) for seconds in steps] == [
        *("1.004 s", "0.9874 s", "0.1000 s", "12.35 ms", "12.35 s", "1234 s")
    ]
    parts = [1.0, 0.9994, 0.0810542, 0.0000149, 0.0, 25.67]
    assert [format_part(seconds) for seconds in parts] == [
        *("1.00 s", "999 ms", "81.1 ms", "14.9 us", "0 s", "25.7 s")
    ]
    assert [format_share(share) for share in (1.0, 0.4, 0.125, 0.003)] == [
        *("100%", "40.0%", "12.5%", "0.3%")
    ]
