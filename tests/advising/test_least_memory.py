"""Where one looks first for the number of micro-batches that fits, and that it does not matter."""

from __future__ import annotations

import math

import pytest

from tensoropt_torch.advising.least_memory import LeastMemory, first_fitting

COUNTS = [1, 2, 4, 8, 16, 32, 64]
MACHINE = ((2, 0), (2, 0))
TWO_MACHINES = ((2, 0), *((size, level + 1) for size, level in MACHINE))


@pytest.mark.parametrize("first", range(len(COUNTS) + 1))
@pytest.mark.parametrize("likely", [*range(len(COUNTS)), None])
def test_the_first_is_found_from_anywhere(first: int, likely: int | None) -> None:
    looked: list[int] = []

    def fits(count: int) -> bool:
        looked.append(count)
        return COUNTS.index(count) >= first

    assert first_fitting(COUNTS, fits, likely) == first
    assert len(looked) == len(set(looked))
    assert len(looked) <= (2 if likely == first else 5)
    assert likely is not None or len(looked) <= (1 if first == len(COUNTS) else 4)


def test_of_no_numbers_none_is_found() -> None:
    assert first_fitting([], lambda count: True, None) == 0


def bytes_in(count: int, num_devices: int) -> float:
    return (640 + 320 / count) / num_devices


@pytest.mark.parametrize(("limit", "likely"), [(120, 0), (101, 1), (91, 2), (80.7, 6), (70, 6)])
def test_two_numbers_on_fewer_devices_tell_of_all_on_more(limit: float, likely: int) -> None:
    least = LeastMemory()
    for count in (64, 8):
        least.of(count, True, MACHINE, lambda count=count: bytes_in(count, 4))
    fits = (place for place, n in enumerate(COUNTS) if bytes_in(n, 8) <= limit)
    assert next(fits, 6) == likely
    assert least.likely_first(COUNTS, True, TWO_MACHINES, limit) == likely


def test_what_is_nearer_tells_more() -> None:
    least = LeastMemory()
    least.of(1, True, MACHINE, lambda: 1e9)
    least.of(1, True, TWO_MACHINES, lambda: 100.0)
    least.of(1, False, TWO_MACHINES, lambda: 1e9)
    assert least.likely_first(COUNTS, True, TWO_MACHINES, 100.0) == 0


def test_one_number_tells_nothing_of_fewer() -> None:
    least = LeastMemory()
    least.of(8, True, MACHINE, lambda: bytes_in(8, 4))
    assert least.likely_first(COUNTS, True, MACHINE, 1e9) == 3
    assert least.likely_first(COUNTS, True, MACHINE, 1.0) == 6
    assert LeastMemory().likely_first(COUNTS, True, MACHINE, 1e9) is None


def test_what_is_known_is_not_found_again() -> None:
    least = LeastMemory()
    assert least.bound(2, True, MACHINE) == 0.0
    assert least.of(2, True, MACHINE, lambda: 5.0) == 5.0
    assert least.of(2, True, MACHINE, lambda: math.inf) == 5.0
    assert least.bound(2, True, TWO_MACHINES) == 2.5
    assert least.bound(2, False, TWO_MACHINES) == 0.0
