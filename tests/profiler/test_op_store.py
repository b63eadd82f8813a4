"""The operators' database: shared, and never silently wrong."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tensoropt_torch import TensorOptError
from tensoropt_torch.profiler.op_store import OpStore, OpTime


def sample(name: str, forward_s: float = 1e-3, backward_s: float = 2e-3) -> OpTime:
    work = ("float32", 10.0, 20.0, 30.0, 1.0, True, False)
    return OpTime(name, "family", work, forward_s, backward_s)


def add_many(path: Path, name: str) -> None:
    with OpStore(path) as store:
        for index in range(40):
            store.add([sample(f"{name}{index}")])


def add_and_wait(path: Path, connection: Connection) -> None:
    with OpStore(path) as store:
        store.add([sample("kept")])
        connection.send(True)
        signal.pause()


def test_what_is_added_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "operators.sqlite"
    with OpStore(path) as store:
        store.add([sample("a"), sample("b")])
        store.add([sample("b", forward_s=5e-3)])
    with OpStore(path) as store:
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
    with OpStore(path) as store:
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
    with OpStore(path) as store:
        assert set(store.load()) == {"kept"}


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    path.write_bytes(b"this is no database, but it is long enough to look like one" * 20)
    with pytest.raises(TensorOptError, match="is damaged"):
        OpStore(path)


def test_a_truncated_file_is_an_error_or_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    samples = {
        f"key {index:04d} {'x' * 200}": sample(f"key {index:04d} {'x' * 200}")
        for index in range(200)
    }
    with OpStore(path) as store:
        store.add(samples.values())
    size = path.stat().st_size
    for length in range(0, size, 4000):
        for extra in tmp_path.glob("operators.sqlite-*"):
            extra.unlink()
        with OpStore(path) as store:
            pass
        content = path.read_bytes()
        cut = tmp_path / f"cut{length}.sqlite"
        cut.write_bytes(content[:length])
        try:
            with OpStore(cut) as store:
                found = store.load()
        except TensorOptError:
            continue
        assert all(samples[key] == value for key, value in found.items()), length
        assert length == 0 or len(found) == len(samples), length


def test_a_locked_file_is_an_error_in_time(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    with OpStore(path):
        pass
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with OpStore(path, busy_s=0.1) as store, pytest.raises(TensorOptError, match="locked"):
        store.add([sample("a")])
    other.execute("ROLLBACK")
    other.close()


def test_a_full_disk_loses_nothing_of_before(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    with OpStore(path) as store:
        store.add([sample("before")])
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(TensorOptError, match="full"):
            store.add([sample(f"{index} {'x' * 500}") for index in range(100)])
        assert set(store.load()) == {"before"}
    with OpStore(path) as store:
        assert set(store.load()) == {"before"}


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "operators.sqlite"
    with OpStore(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=7")
    connection.close()
    with pytest.raises(TensorOptError, match="has version 7"):
        OpStore(path)


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TensorOptError, match="TENSOROPT_HOME"):
        OpStore(tmp_path / "file" / "operators.sqlite")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_times_are_refused(seconds: float) -> None:
    with pytest.raises(TensorOptError, match="measure it again"):
        sample("a", forward_s=seconds)
