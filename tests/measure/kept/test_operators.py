"""The file of measured operators: shared, and never silently wrong."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tensoropt_torch import TensorOptError
from tensoropt_torch.measure.kept.files import locked
from tensoropt_torch.measure.kept.operator_times import (
    OpStore,
    OpTime,
    keep_operators,
    known_operators,
)
from tensoropt_torch.measure.machine.key import MachineKey

HERE = MachineKey("a processor", "cpu", 2, 1, 2, 1, "gloo", "2.13", (2,))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpStore:
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path))
    return OpStore(HERE)


def sample(name: str, forward_s: float = 1e-3, backward_s: float = 2e-3) -> OpTime:
    work = ("float32", 10.0, 20.0, 30.0, 1.0, True, False)
    return OpTime(name, "family", work, forward_s, backward_s)


def add_many(name: str) -> None:
    for index in range(40):
        OpStore(HERE).add([sample(f"{name}{index}")])


def add_and_wait(connection: Connection) -> None:
    """Is killed where another process could not add."""
    own = OpStore(HERE)
    own.add([sample("kept")])
    with locked(own.path):
        connection.send(True)
        signal.pause()


def test_what_is_added_is_loaded(store: OpStore) -> None:
    assert store.load() == {}
    store.add([sample("a"), sample("b")])
    store.add([sample("b", forward_s=5e-3)])
    assert OpStore(HERE).load() == {"a": sample("a"), "b": sample("b", forward_s=5e-3)}


def test_several_processes_lose_nothing(store: OpStore) -> None:
    context = multiprocessing.get_context("fork")
    names = ["a", "b", "c"]
    processes = [context.Process(target=add_many, args=(name,)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert set(store.load()) == {f"{name}{index}" for name in names for index in range(40)}


def test_a_killed_process_leaves_what_it_added(store: OpStore) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=add_and_wait, args=(sender,))
    process.start()
    assert receiver.recv()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert set(store.load()) == {"kept"}
    store.add([sample("more")])
    assert set(store.load()) == {"kept", "more"}


@pytest.mark.parametrize("content", [b"no JSON" * 200, b"", b"\xff\xfe", b"SQLite format 3\x00"])
def test_another_file_is_an_error(store: OpStore, content: bytes) -> None:
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(content)
    with pytest.raises(TensorOptError, match="is damaged"):
        store.load()
    with pytest.raises(TensorOptError, match="is damaged"):
        store.add([sample("a")])
    assert store.path.read_bytes() == content


def test_a_truncated_file_is_an_error(store: OpStore) -> None:
    store.add(sample(f"key {index:04d}") for index in range(200))
    content = store.path.read_bytes()
    for length in range(0, len(content), 1000):
        store.path.write_bytes(content[:length])
        with pytest.raises(TensorOptError, match="is damaged"):
            store.load()


def test_every_damaged_byte_is_an_error_or_no_matter(store: OpStore) -> None:
    """A sample is never another one."""
    samples = {name: sample(name, forward_s=1.25e-3, backward_s=2.5e-3) for name in "abc"}
    store.add(samples.values())
    content = store.path.read_bytes()
    noticed = 0
    for position in range(len(content)):
        changed = bytes([content[position] ^ 0x15])
        store.path.write_bytes(content[:position] + changed + content[position + 1 :])
        try:
            found = store.load()
        except TensorOptError:
            noticed += 1
            continue
        assert found == samples, position
    assert noticed > len(content) / 2


def test_a_file_of_other_machines_is_refused(store: OpStore) -> None:
    others = OpStore(replace(HERE, cores=4))
    others.add([sample("a")])
    assert store.load() == {}
    others.path.rename(store.path)
    with pytest.raises(TensorOptError, match="it is of other conditions"):
        store.load()


def test_a_locked_file_is_an_error_in_time(store: OpStore) -> None:
    with locked(store.path), pytest.raises(TensorOptError, match=r"is locked for 0\.1 s"):
        store.add([sample("a")], busy_s=0.1)
    store.add([sample("b")])
    assert set(store.load()) == {"b"}


def fill(sender: Connection) -> None:
    """Where no file may grow beyond 64 KiB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    try:
        OpStore(HERE).add([sample(f"{index} {'x' * 500}") for index in range(1000)])
    except TensorOptError as error:
        sender.send(str(error))
    else:
        sender.send("written")


def test_files_that_cannot_grow_lose_nothing_of_before(store: OpStore) -> None:
    store.add([sample("before")])
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=fill, args=(sender,))
    process.start()
    assert receiver.poll(60)
    assert "free space" in receiver.recv()
    process.join(60)
    assert set(store.load()) == {"before"}


def test_another_version_is_refused(store: OpStore) -> None:
    store.add([sample("a")])
    record = json.loads(store.path.read_text())
    store.path.write_text(json.dumps({**record, "version": 7}))
    with pytest.raises(TensorOptError, match="has version 7"):
        store.load()


def test_content_of_another_form_is_an_error(store: OpStore) -> None:
    store._file.write({"operators": [{"key": "a", "family": "family"}]})
    with pytest.raises(TensorOptError, match=r"is damaged.*work"):
        store.load()


def test_a_folder_that_cannot_be_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path / "file"))
    with pytest.raises(TensorOptError, match="TENSOROPT_HOME"):
        OpStore(HERE).add([sample("a")])


def test_files_of_a_database_are_left_alone(store: OpStore) -> None:
    """As other versions of the package have them."""
    old = store.path.with_suffix(".sqlite")
    old.parent.mkdir(parents=True)
    old.write_bytes(b"SQLite format 3\x00")
    assert known_operators(HERE) == {}
    assert keep_operators(HERE, [sample("a")])
    assert known_operators(HERE) == {"a": sample("a")}
    assert old.read_bytes() == b"SQLite format 3\x00"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_times_are_refused(seconds: float) -> None:
    with pytest.raises(TensorOptError, match="measure it again"):
        sample("a", forward_s=seconds)
