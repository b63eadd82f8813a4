"""The operators' database: shared, and never silently wrong."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tensoropt_torch import TensorOptError
from tensoropt_torch.measure.kept.operators import OpStore, OpTime

HERE = "machines of this test"


def sample(name: str, forward_s: float = 1e-3, backward_s: float = 2e-3) -> OpTime:
    work = ("float32", 10.0, 20.0, 30.0, 1.0, True, False)
    return OpTime(name, "family", work, forward_s, backward_s)


def add_many(path: Path, name: str) -> None:
    with OpStore(path, HERE) as store:
        for index in range(40):
            store.add([sample(f"{name}{index}")])


def add_and_wait(path: Path, connection: Connection) -> None:
    with OpStore(path, HERE) as store:
        store.add([sample("kept")])
        connection.send(True)
        signal.pause()


def test_what_is_added_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "operators.sqlite"
    with OpStore(path, HERE) as store:
        store.add([sample("a"), sample("b")])
        store.add([sample("b", forward_s=5e-3)])
    with OpStore(path, HERE) as store:
        assert store.load() == {"a": sample("a"), "b": sample("b", forward_s=5e-3)}


def test_several_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    context = multiprocessing.get_context("fork")
    names = ["a", "b", "c"]
    processes = [context.Process(target=add_many, args=(path, name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    with OpStore(path, HERE) as store:
        assert set(store.load()) == {f"{name}{index}" for name in names for index in range(40)}


def test_a_killed_process_leaves_what_it_added(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=add_and_wait, args=(path, sender))
    process.start()
    assert receiver.recv()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with OpStore(path, HERE) as store:
        assert set(store.load()) == {"kept"}


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    path.write_bytes(b"this is no database, but it is long enough to look like one" * 20)
    with pytest.raises(TensorOptError, match="is damaged"):
        OpStore(path, HERE)


def test_a_truncated_file_is_an_error_or_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    samples = {
        f"key {index:04d} {'x' * 200}": sample(f"key {index:04d} {'x' * 200}")
        for index in range(200)
    }
    with OpStore(path, HERE) as store:
        store.add(samples.values())
    size = path.stat().st_size
    for length in range(0, size, 4000):
        for extra in tmp_path.glob("operators.sqlite-*"):
            extra.unlink()
        with OpStore(path, HERE) as store:
            pass
        content = path.read_bytes()
        cut = tmp_path / f"cut{length}.sqlite"
        cut.write_bytes(content[:length])
        try:
            with OpStore(cut, HERE) as store:
                found = store.load()
        except TensorOptError:
            continue
        assert all(samples[key] == value for key, value in found.items()), length
        assert length == 0 or len(found) == len(samples), length


def test_every_damaged_byte_is_an_error_or_no_matter(tmp_path: Path) -> None:
    """A sample may be lost, but is never another one: SQLite itself does not notice
    that a number has changed."""
    path = tmp_path / "operators.sqlite"
    samples = {name: sample(name, forward_s=1.25e-3, backward_s=2.5e-3) for name in "abc"}
    with OpStore(path, HERE) as store:
        store.add(samples.values())
        store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    noticed = 0
    used = [at for at, byte in enumerate(content) if byte != 0 and at >= 100]
    for position in used:
        damaged = tmp_path / "damaged.sqlite"
        for file in tmp_path.glob("damaged.sqlite*"):
            file.unlink()
        changed = bytes([content[position] ^ 0x15])
        damaged.write_bytes(content[:position] + changed + content[position + 1 :])
        try:
            with OpStore(damaged, HERE) as store:
                found = store.load()
        except TensorOptError:
            noticed += 1
            continue
        assert all(samples[key] == value for key, value in found.items()), position
    assert noticed > len(used) / 2


def test_a_file_of_other_machines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    with OpStore(path, "others") as store:
        store.add([sample("a")])
    with pytest.raises(TensorOptError, match=r"measured on other machines.*others"):
        OpStore(path, HERE)


def test_a_locked_file_is_an_error_in_time(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    with OpStore(path, HERE):
        pass
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with OpStore(path, HERE, busy_s=0.1) as store, pytest.raises(TensorOptError, match="locked"):
        store.add([sample("a")])
    other.execute("ROLLBACK")
    other.close()


def test_a_full_disk_loses_nothing_of_before(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    with OpStore(path, HERE) as store:
        store.add([sample("before")])
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(TensorOptError, match="full"):
            store.add([sample(f"{index} {'x' * 500}") for index in range(100)])
        assert set(store.load()) == {"before"}
    with OpStore(path, HERE) as store:
        assert set(store.load()) == {"before"}


def fill(path: Path, sender: Connection) -> None:
    """Where no file may grow beyond 64 KiB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    with OpStore(path, HERE) as store:
        try:
            store.add([sample(f"{index} {'x' * 500}") for index in range(1000)])
        except TensorOptError as error:
            sender.send(str(error))
        else:
            sender.send("written")


def test_files_that_cannot_grow_lose_nothing_of_before(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    with OpStore(path, HERE) as store:
        store.add([sample("before")])
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=fill, args=(path, sender))
    process.start()
    assert receiver.poll(60)
    assert "free space" in receiver.recv()
    process.join(60)
    with OpStore(path, HERE) as store:
        assert set(store.load()) == {"before"}


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    with OpStore(path, HERE):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=7")
    connection.close()
    with pytest.raises(TensorOptError, match="has version 7"):
        OpStore(path, HERE)


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TensorOptError, match="TENSOROPT_HOME"):
        OpStore(tmp_path / "file" / "operators.sqlite", HERE)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_times_are_refused(seconds: float) -> None:
    with pytest.raises(TensorOptError, match="measure it again"):
        sample("a", forward_s=seconds)
