"""The fit of the runtime's own time, on times that are made up."""

from __future__ import annotations

import pytest

from tensoropt_torch.measure.runs.overheads import FEW, MANY, Runs, runtime_of
from tensoropt_torch.measure.runs.training import StepTimes

CALL_S = 4e-6 * 26
PASS_S = 3e-5  # of a parameter, forward and backward
LARGE_BYTES = 1 << 22
UPDATE_S = {"sgd": 2e-5, "adamw": 9e-5}
BYTE_S = {"sgd": 1e-10, "adamw": 6e-10}
RESHARD_S = 1.7e-5
COLLECTIVE_S = 4e-4


def times(optimizer: str, parameters: int, large: bool = False) -> StepTimes:
    moved = LARGE_BYTES * BYTE_S[optimizer] if large else 0.0
    update_s = parameters * (UPDATE_S[optimizer] + moved)
    return StepTimes(CALL_S + parameters * PASS_S + update_s, update_s, 0.0)


def runs(
    reshards: tuple[tuple[float, int], ...] = (), networks: tuple[tuple[float, float], ...] = ()
) -> Runs:
    few = {name: times(name, FEW) for name in UPDATE_S}
    many = {name: times(name, MANY) for name in UPDATE_S}
    large = {name: times(name, FEW, large=True) for name in UPDATE_S}
    return Runs(few, many, large, LARGE_BYTES, reshards, networks)


def test_the_fit_finds_what_the_times_were_made_of() -> None:
    plain = CALL_S + FEW * PASS_S
    found = runtime_of(
        runs(
            tuple((plain + n * RESHARD_S, n) for n in (3, 8, 20)),
            tuple((n * COLLECTIVE_S, n) for n in (2.0, 5.0, 0.0, 9.0)),
        )
    )
    assert found.reshard_s == pytest.approx(RESHARD_S)
    assert found.collective_s == pytest.approx(COLLECTIVE_S)
    for name, factor in (("sgd", 0.0), ("adamw", 2.0)):
        update = found.update(factor)
        assert update is not None
        assert update.parameter_s == pytest.approx(PASS_S + UPDATE_S[name])
        assert update.s_per_byte == pytest.approx(BYTE_S[name])


def test_noise_does_not_make_anything_negative() -> None:
    found = runtime_of(runs(((0.0, 5),)))
    assert found.reshard_s == 0
    assert runtime_of(runs()).reshard_s == 0
    assert runtime_of(runs(networks=((-0.1, 5.0),))).collective_s == 0
    assert runtime_of(runs(((1.0, 0),))).reshard_s == 0  # a strategy without reshards
