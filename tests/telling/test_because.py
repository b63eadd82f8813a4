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
        "10% faster than FSDP2: it waits 1.00 s less for collectives (all-gathers of parameters: "
        "10.00 GiB in 400 ms instead of 30.00 GiB in 1.20 s; all-reduces of gradients: none "
        "instead of 1.00 GiB in 100 ms), but spends 500 ms more on operators that run again"
    )


def test_the_other_way_round_it_is_slower() -> None:
    text = why_faster(THEIRS, OURS, "FSDP2")
    assert text.startswith("10% slower than FSDP2: it waits 1.00 s longer for collectives (all-")
    assert text.endswith("), but spends 500 ms less on operators that run again")


def test_what_takes_as_long_is_said_to() -> None:
    assert why_faster(OURS, OURS, "DDP") == "as fast as DDP"


def test_a_small_difference_is_said_where_it_is_asked_for() -> None:
    a_little = Costs({"operators": 4.0, "updates of parameters": 0.016}, {})
    none = Costs({"operators": 4.0}, {})
    assert why_faster(none, a_little, "DDP") == "as fast as DDP"
    assert why_faster(none, a_little, "DDP", small=True) == (
        "0.4% faster than DDP: it spends 16.0 ms less on updates of parameters"
    )
    assert why_faster(none, none, "DDP", small=True) == "as fast as DDP"
