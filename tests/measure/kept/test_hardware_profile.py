"""Files of hardware profiles: what is written is read, and nothing else is believed."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tensoropt_torch import TensorOptError
from tensoropt_torch.config import load_cluster
from tensoropt_torch.config.cluster import Runtime, Update
from tensoropt_torch.measure.kept import files as store
from tensoropt_torch.measure.kept.files import home
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile, is_profile
from tensoropt_torch.measure.machine.key import MachineKey

KEY = MachineKey("some CPU", "cpu", 2, 1, 2, 1, "gloo", "2.13.0", (2,))


@pytest.fixture
def profile() -> HardwareProfile:
    cluster = load_cluster("cpu")
    runtime = Runtime(2e-5, 3e-4, (Update(2.0, 1e-4, 1e-9),), "fitted")
    cluster = replace(cluster, device=replace(cluster.device, runtime=runtime))
    curves = (("all_reduce", 1, ((1024.0, 1e-4), (2048.0, 1.5e-4))),)
    return HardwareProfile(KEY, cluster, ((2, 0),), curves, 2048, complete=True)


def test_what_is_written_is_read(profile: HardwareProfile, tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.json"
    profile.save(path)
    assert HardwareProfile.load(path) == profile
    assert is_profile(path)


def test_a_curve_replaces_the_one_before(profile: HardwareProfile) -> None:
    other = ("all_gather", 1, ((1024.0, 1e-4),))
    newer = ("all_reduce", 1, ((1024.0, 3e-4),))
    assert profile.with_curve(other).with_curve(newer).curves == (other, newer)


def test_every_damaged_byte_is_noticed(profile: HardwareProfile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    text = profile.to_json()
    for position in range(0, len(text), 7):
        if text[position].isspace():
            continue
        path.write_text(
            text[:position] + ("0" if text[position] != "0" else "1") + text[position + 1 :]
        )
        try:
            found = HardwareProfile.load(path)
        except TensorOptError:
            continue
        assert found == profile, position  # a change of what is no content


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_truncated_files_are_damaged(profile: HardwareProfile, tmp_path: Path, length: int) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile.to_json()[:length])
    with pytest.raises(TensorOptError, match="delete it and measure again"):
        HardwareProfile.load(path)


def test_other_files_and_versions_are_refused(profile: HardwareProfile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TensorOptError, match="it is no text"):
        HardwareProfile.load(path)
    path.write_text('{"some": "thing"}')
    with pytest.raises(TensorOptError, match="is no hardware profile"):
        HardwareProfile.load(path)
    assert not is_profile(path)
    record = json.loads(profile.to_json()) | {"version": 99}
    path.write_text(json.dumps(record))
    with pytest.raises(TensorOptError, match="has version 99"):
        HardwareProfile.load(path)
    with pytest.raises(TensorOptError, match="cannot be read"):
        HardwareProfile.load(tmp_path / "missing.json")


def test_times_that_are_not_positive_are_refused(profile: HardwareProfile) -> None:
    wrong = profile.with_curve(("all_reduce", 1, ((1024.0, 0.0),)))
    place = r"content: curves\[0\]\[2\]\[0\]\[1\] = 0.0"
    with pytest.raises(TensorOptError, match=f"{place} is not allowed.* above 0; delete it"):
        HardwareProfile.from_json(wrong.to_json(), "here")


def test_a_full_disk_leaves_the_old_file(
    profile: HardwareProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profile.json"
    profile.save(path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(TensorOptError, match="No space left on device"):
        replace(profile, complete=False).save(path)
    assert HardwareProfile.load(path) == profile
    assert list(tmp_path.iterdir()) == [path]


def save_without_room(profile: HardwareProfile, path: Path, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    try:
        profile.save(path)
    except TensorOptError as error:
        sender.send(str(error))
    else:
        sender.send("written")


def test_a_file_that_cannot_grow_leaves_the_old_one(
    profile: HardwareProfile, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    profile.save(path)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    other = replace(profile, complete=False)
    process = context.Process(target=save_without_room, args=(other, path, sender))
    process.start()
    assert receiver.poll(60)
    assert "free space" in receiver.recv()
    process.join(60)
    assert HardwareProfile.load(path) == profile
    assert list(tmp_path.iterdir()) == [path]


def save_often(profile: HardwareProfile, path: Path) -> None:
    for _ in range(50):
        profile.save(path)


def test_two_runs_at_once_leave_one_of_their_profiles(
    profile: HardwareProfile, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    profile.save(path)
    others = [replace(profile, max_bytes=2**index) for index in (20, 21)]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=save_often, args=(other, path)) for other in others]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        assert HardwareProfile.load(path) in [profile, *others]
    assert [process.exitcode for process in processes] == [0, 0]
    assert HardwareProfile.load(path) in others
    assert list(tmp_path.iterdir()) == [path]


def test_an_impossible_folder_is_named(profile: HardwareProfile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TensorOptError, match="TENSOROPT_HOME"):
        profile.save(tmp_path / "file" / "profile.json")


def test_keys_differ_in_everything() -> None:
    others = [
        replace(KEY, device="another"),
        replace(KEY, cores=4),
        replace(KEY, threads=2),
        replace(KEY, torch="2.14.0"),
        replace(KEY, axes=(2, 2)),
    ]
    assert len({key.digest for key in [KEY, *others]}) == len(others) + 1
    assert KEY.differences(others[1]) == ["cores: 2 instead of 4"]
    assert KEY.differences(KEY) == []


def test_the_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TENSOROPT_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home() == tmp_path / "tensoropt"
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path / "own"))
    assert home() == tmp_path / "own"
