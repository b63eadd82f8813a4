"""Files that do not work: a line of the log each, and no job ends."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensoropt_torch
from tensoropt_torch import TensorOptError
from tensoropt_torch.measure.kept import files
from tensoropt_torch.measure.kept.files import (
    digest_of_folder,
    digest_of_package,
    is_written,
    read_or,
    write_atomically,
)
from tensoropt_torch.measure.kept.operator_times import OpTime, keep_operators, known_operators
from tests.measure.kept.test_hardware_profile import KEY
from tests.measure.logged import logged_warnings

SAMPLE = OpTime("a", "family", ("float32", 1.0, 2.0, 3.0, 1.0, True, False), 1e-3, 2e-3)


def test_what_is_read_is_given() -> None:
    with logged_warnings() as messages:
        assert read_or(None, lambda: 3, "measured again") == 3
    assert messages == []


@pytest.mark.parametrize("error", [TensorOptError("damaged"), OSError("denied"), ValueError("bad")])
def test_what_cannot_be_read_is_a_line_of_the_log(error: Exception) -> None:
    def fails() -> int:
        raise error

    with logged_warnings() as messages:
        assert read_or(7, fails, "measured again") == 7
        assert not is_written(fails, "the plan")
    assert messages == [f"{error}; measured again", f"{error}; the plan is not kept"]


def test_our_own_mistakes_are_errors() -> None:
    def fails() -> int:
        raise AssertionError

    with pytest.raises(AssertionError):
        read_or(7, fails, "measured again")
    with pytest.raises(AssertionError):
        is_written(fails, "the plan")


def test_what_is_written_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with logged_warnings() as messages:
        assert is_written(lambda: write_atomically(path, "text"), "the plan")
    assert (path.read_text(), messages) == ("text", [])


def test_operators_of_an_unusable_file_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path))
    assert keep_operators(KEY, [SAMPLE])
    assert known_operators(KEY) == {"a": SAMPLE}
    (path,) = (tmp_path / "operators").glob("*.json")
    path.write_bytes(b"\x00 something else" * 500)
    with logged_warnings() as messages:
        assert known_operators(KEY) == {}
        assert not keep_operators(KEY, [SAMPLE])
    found, kept = messages
    assert str(path) in found and found.endswith("operators are measured again")
    assert str(path) in kept and kept.endswith("what was measured is not kept")


def test_the_digest_is_of_all_sources_and_libraries(tmp_path: Path) -> None:
    for name in ("a.py", "room/b.py", "room/c.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    seen = {digest_of_folder(tmp_path)}
    for name in ("a.py", "room/b.py", "room/c.so"):
        (tmp_path / name).write_text("changed")
        seen.add(digest_of_folder(tmp_path))
    (tmp_path / "a.py").rename(tmp_path / "d.py")
    seen.add(digest_of_folder(tmp_path))
    assert len(seen) == 5
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "d.py").touch()
    assert digest_of_folder(tmp_path) in seen


def test_the_digest_of_the_package_is_of_all_its_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(files, "digest_of_folder", lambda folder: folders.append(folder) or "")
    digest_of_package.__wrapped__()
    assert folders == [Path(tensoropt_torch.__file__).parent]
