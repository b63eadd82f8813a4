"""What is exposed of overlapping reshards, from times that are made up."""

from __future__ import annotations

import pytest

from tensoropt_torch.measure.runs.exposed import NOT_RUN, BothWays, exposed_of


def both_ways(
    network_s: float, shares: tuple[float, float], exposed: tuple[float, float]
) -> BothWays:
    """A plan whose reshards of parameters and of gradients are ``shares`` of its network
    time, if overlap leaves ``exposed`` of them."""
    hidden_s = sum(
        network_s * share * (1 - left) for share, left in zip(shares, exposed, strict=True)
    )
    return BothWays(network_s, hidden_s, 0.0, *shares)


@pytest.mark.parametrize("exposed", [(0.3, 0.6), (0.0, 0.0), (1.0, 0.25), (0.5, 1.0)])
def test_the_fit_finds_what_the_times_were_made_of(exposed: tuple[float, float]) -> None:
    data_parallel = both_ways(0.01, (0.0, 0.9), exposed)
    gathered = both_ways(0.03, (0.4, 0.3), exposed)
    found = exposed_of(data_parallel, gathered)
    assert (found.parameters, found.gradients) == pytest.approx(exposed)
    assert found.hides_something == (min(exposed) < 1)


def test_what_is_slower_with_overlap_or_within_the_noise_hides_nothing() -> None:
    for left in (0.98, 1.0, 1.4):
        found = exposed_of(
            both_ways(0.01, (0.0, 1.0), (1.0, left)), both_ways(0.03, (0.5, 0.5), (left, left))
        )
        assert (found.parameters, found.gradients) == (1.0, 1.0)
        assert not found.hides_something


def test_where_nothing_is_resharded_noise_is_not_taken_for_overlap() -> None:
    nothing = BothWays(0.0, 0.001, 0.0, 0.0, 0.0)
    assert not exposed_of(nothing, nothing).hides_something
    assert not exposed_of(NOT_RUN, NOT_RUN).hides_something
    gradients_only = BothWays(0.01, 0.002, 0.0, 1e-17, 1.0)
    assert exposed_of(gradients_only, gradients_only).parameters == 1.0


def test_gains_below_what_steps_differ_by_are_not_taken_for_overlap() -> None:
    for noise_s, hides in ((0.004, True), (0.006, False)):
        data_parallel = BothWays(0.01, 0.005, noise_s, 0.0, 1.0)
        gathered = BothWays(0.03, 0.005, noise_s, 0.5, 0.5)
        assert exposed_of(data_parallel, gathered).hides_something == hides
