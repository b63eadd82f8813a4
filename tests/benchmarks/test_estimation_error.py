"""The file of the study of estimation errors, which grows model by model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import estimation_error as study
from tensoropt_torch.config import load_cluster
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.machine.key import MachineKey


def entry(number: int, effort: str = "full") -> dict[str, Any]:
    return {"figure": number, "made_with": {"effort": effort}}


def test_what_is_not_run_again_stays(tmp_path: Path) -> None:
    path = tmp_path / "results" / "file.json"
    study.add_result(path, 2, "collectives", entry(1))
    study.add_result(path, 2, "rnn", entry(2))
    study.add_result(path, 4, "rnn", entry(3))
    study.add_result(path, 2, "wide_resnet", entry(4))
    study.add_result(path, 2, "rnn", entry(5, "small"))
    assert study.read_results(path) == {
        "ranks": {
            "2": {
                "collectives": entry(1),
                "models": {"rnn": entry(5, "small"), "wide_resnet": entry(4)},
            },
            "4": {"models": {"rnn": entry(3)}},
        }
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"ranks": []}',
        '{"ranks": {"2": {}}}',
        '{"ranks": {"2": {"models": {"rnn": {}}}}}',
    ],
)
def test_other_files_are_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match="no results of this benchmark"):
        study.add_result(path, 2, "rnn", entry(1))
    assert path.read_text() == text


def test_conditions_are_known_again_when_read_back() -> None:
    """Of a profile that a later call finds in its file; others are told apart."""
    key = MachineKey("made up", "cpu", 2, 1, 2, 1, "gloo", "2.0", (2,))
    curves = (("all_reduce", 1, ((1024.0, 1.0 / 3.0),)),)
    profile = HardwareProfile(key, load_cluster("cpu"), ((2, 0),), curves, 1 << 20, True)
    known = study.made_with(profile, study.QUICK)
    again = HardwareProfile.from_json(profile.to_json(), "test")
    assert study.made_with(again, study.QUICK) == known
    assert json.loads(json.dumps(known)) == known
    assert study.made_with(profile, study.Effort()) != known
    other = replace(profile, curves=(("all_reduce", 1, ((1024.0, 0.5),)),))
    assert study.made_with(other, study.QUICK) != known
