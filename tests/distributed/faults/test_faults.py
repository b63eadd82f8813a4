"""A fault ends with a message, loses nothing, and the next start goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.distributed.faults.cases import KINDS, WARM, Case, Faults
from tests.distributed.faults.job import STAGES
from tests.distributed.faults.runs import Process, Server


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    with Server() as server:
        yield Faults(server, tmp_path_factory.mktemp("faults"))


def check(faults: Faults, case: Case) -> None:
    row = faults.run(case).row()
    print(json.dumps(row))
    assert row["wrong"] == []


def test_of_two_processes_one_is_killed_in_a_step(faults: Faults) -> None:
    check(faults, Case(0, "kill", "step", WARM, 2, 1, 0.5, "run"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 101))
def test_faults_at_random_points(faults: Faults, seed: int) -> None:
    check(faults, Case.of(seed))


def test_a_hundred_seeds_are_all_faults_at_all_stages() -> None:
    found = {(case.kind, case.stage) for case in map(Case.of, range(1, 101))}
    assert found == {(kind, stage) for kind in KINDS for stage in STAGES}


def test_the_error_of_a_process_is_its_last_one() -> None:
    process = Process(1)
    process.take(
        'Traceback (most recent call last):\n  File "a"\nOSError: 1\n\n[rank1]: Traceback (most '
        'recent call last):\n[rank1]:   File "b"\n[rank1]: ValueError: two\n[rank1]: lines\n'
        '{"step": 0, "loss": 1.5}\n'
    )
    assert process.message == "ValueError: two lines"
    assert process.losses() == {0: 1.5}
