"""Sentences of why a strategy is faster, from costs that were made up."""

from __future__ import annotations

from tensoropt_torch.telling.because import Costs, why_faster

GIB = 2**30
OURS = Costs(
    {"operators": 4.0, "operators again in backward": 0.5, "reshards and collectives": 0.5},
    {"all-gathers of parameters": (10.0 * GIB, 0.4)},
)
THEIRS = Costs(
    {"operators": 4.0, "reshards and collectives": 1.5},
    {"all-gathers of parameters": (30.0 * GIB, 1.2), "all-reduces of gradients": (1.0 * GIB, 0.1)},
)


def test_the_largest_part_comes_first_and_what_is_against_it_last() -> None:
    assert why_faster(OURS, THEIRS, "FSDP2") == (
        "10 % faster than FSDP2: it waits 1.000 s less for collectives (all-gathers of parameters: "
        "10.00 GiB in 400.000 ms instead of 30.00 GiB in 1.200 s; all-reduces of gradients: none "
        "instead of 1.00 GiB in 100.000 ms), but runs operators again for 500.000 ms longer"
    )


def test_the_other_way_round_it_is_slower() -> None:
    text = why_faster(THEIRS, OURS, "FSDP2")
    assert text.startswith("10 % slower than FSDP2: it waits 1.000 s longer for collectives (all-")
    assert text.endswith("), but runs operators again for 500.000 ms less")


def test_what_takes_as_long_is_said_to() -> None:
    assert why_faster(OURS, OURS, "DDP") == "as fast as DDP"
