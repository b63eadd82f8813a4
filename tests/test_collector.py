"""Python's collector while much is made that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tensoropt_torch.collector import quick_collections, without_collections

YOUNGEST, OLDEST = 0, 2


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()


def is_in(thing: object, generation: int) -> bool:
    return any(found is thing for found in gc.get_objects(generation))


def test_what_is_made_inside_is_old_at_the_end() -> None:
    with without_collections():
        assert not gc.isenabled()
        made = [object()]
        assert is_in(made, YOUNGEST)
    assert gc.isenabled()
    assert is_in(made, OLDEST)


def test_a_program_that_collects_nothing_goes_on_so() -> None:
    gc.disable()
    with without_collections():
        pass
    assert not gc.isenabled()


def is_still(frozen: int) -> bool:
    """Whether so many objects are frozen, but for some that nobody has any more."""
    return 0.99 * frozen < gc.get_freeze_count() <= frozen


def test_what_a_program_has_frozen_stays_so() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with without_collections():
        made = [object()]
    assert is_still(frozen)
    assert gc.isenabled()
    assert not is_in(made, OLDEST)


def test_quick_collections_leave_what_a_program_has_frozen() -> None:
    with quick_collections():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    frozen = gc.get_freeze_count()
    with quick_collections():
        pass
    assert is_still(frozen)


def test_after_an_error_it_collects_again() -> None:
    with pytest.raises(KeyError), without_collections():
        raise KeyError
    assert gc.isenabled()
