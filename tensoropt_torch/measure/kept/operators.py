"""Measured operators in a SQLite file, which all models and runs share.

    with OpStore(path, machine.digest) as store:
        store.add(samples)      # at once or not at all
        store.load()            # {key: OpTime}

Several processes may use one file at once; what one has added stays if it is
killed a moment later. Every row carries a checksum, since SQLite sees damage of its
structure but not of numbers, and the file says on which machines it was measured.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.measure.kept.files import home, is_written, read_or
from tensoropt_torch.measure.machine.key import MachineKey
from tensoropt_torch.plan import OpRecord

VERSION = 3
BUSY_S = 10.0

_MACHINE = "CREATE TABLE machine (digest TEXT NOT NULL)"
_SCHEMA = """
CREATE TABLE operators (
  key TEXT PRIMARY KEY,
  family TEXT NOT NULL,
  dtype TEXT NOT NULL,
  forward_flops REAL NOT NULL CHECK (forward_flops >= 0),
  backward_flops REAL NOT NULL CHECK (backward_flops >= 0),
  bytes REAL NOT NULL CHECK (bytes >= 0),
  launches REAL NOT NULL CHECK (launches >= 0),
  backward INTEGER NOT NULL,
  view INTEGER NOT NULL,
  forward_s REAL NOT NULL CHECK (forward_s > 0),
  backward_s REAL NOT NULL CHECK (backward_s >= 0),
  checksum TEXT NOT NULL
) WITHOUT ROWID
"""
_COLUMNS = (
    "key, family, dtype, forward_flops, backward_flops, bytes, launches, backward, view, "
    "forward_s, backward_s, checksum"
)


@dataclass(frozen=True)
class OpTime:
    """One call of an operator on one rank: what it is and what it takes.

    ``key`` and ``family`` are those of ``csrc/cost/local_call.h``, ``work`` is
    (dtype, FLOPs forward and backward, bytes, launches, whether there is a
    backward, whether it is a view). Times are in s, without the collectives that
    the operator runs by itself.
    """

    key: str
    family: str
    work: tuple[str, float, float, float, float, bool, bool]
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        numbers = (*self.work[1:5], self.forward_s, self.backward_s)
        if not all(0 <= number < math.inf for number in numbers) or self.forward_s == 0:
            raise TensorOptError(
                f"the times of operator '{self.key}' are wrong: {self.forward_s} s forward, "
                f"{self.backward_s} s backward; measure it again"
            )


class OpStore:
    """An open file; use it in one thread.

    ``machine`` is the digest of the ``MachineKey`` that the samples are of.

    Raises:
        TensorOptError: the file is damaged, of another version or of other machines,
            locked for long, or cannot be written; it says which file and what to do.
    """

    def __init__(self, path: Path, machine: str, busy_s: float = BUSY_S) -> None:
        self.path = path
        self._machine = machine
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._error(str(error), "set TENSOROPT_HOME to another folder") from error
        self._run(lambda: self._open(busy_s))

    def __enter__(self) -> OpStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def add(self, samples: Iterable[OpTime]) -> None:
        """Keeps the samples; those with a known key replace what was known."""
        rows = [_row(sample) for sample in samples]
        marks = ", ".join("?" * len(_COLUMNS.split(",")))

        def insert() -> None:
            with self._transaction():
                self._connection.executemany(
                    f"INSERT OR REPLACE INTO operators ({_COLUMNS}) VALUES ({marks})", rows
                )

        self._run(insert)

    def load(self) -> dict[str, OpTime]:
        """All samples by key."""
        found = self._run(lambda: self._connection.execute("PRAGMA quick_check").fetchone()[0])
        if found != "ok":
            raise self._error(f"it is damaged ({found})", "delete it")
        rows: list[tuple[Any, ...]] = self._run(
            lambda: self._connection.execute(
                f"SELECT {_COLUMNS} FROM operators ORDER BY key"
            ).fetchall()
        )
        wrong = [row for row in rows if row[-1] != _checksum(row[:-1])]
        if wrong:
            raise self._error(f"it is damaged (the checksum of '{wrong[0][0]}')", "delete it")
        return {row[0]: _sample(row) for row in rows}

    def _open(self, busy_s: float) -> None:
        self._connection = sqlite3.connect(self.path, timeout=busy_s, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        version = self._version()
        if version == 0:
            self._create()
            version = self._version()
        if version != VERSION:
            self._connection.close()
            raise self._error(
                f"it has version {version}, this version of tensoropt_torch uses {VERSION}",
                "set TENSOROPT_HOME to another folder, or delete it",
            )
        machines = self._connection.execute("SELECT digest FROM machine").fetchall()
        if machines != [(self._machine,)]:
            self._connection.close()
            raise self._error(
                f"it was measured on other machines ({machines} instead of {self._machine})",
                "delete it",
            )

    def _version(self) -> int:
        version: int = self._connection.execute("PRAGMA user_version").fetchone()[0]
        return version

    def _create(self) -> None:
        """Makes the table, unless another process has just done so."""
        with self._transaction():
            if self._version() == 0:
                self._connection.execute(_SCHEMA)
                self._connection.execute(_MACHINE)
                self._connection.execute("INSERT INTO machine VALUES (?)", [self._machine])
                self._connection.execute(f"PRAGMA user_version={VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """What happens inside is written as a whole, or not at all."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # A full disk has ended the transaction already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _run(self, action: Any) -> Any:
        try:
            return action()
        except sqlite3.OperationalError as error:
            hint = "free space, set TENSOROPT_HOME to another folder, or end what locks it"
            raise self._error(str(error), hint) from error
        except sqlite3.DatabaseError as error:
            raise self._error(f"it is damaged ({error})", "delete it") from error

    def _error(self, problem: str, hint: str) -> TensorOptError:
        return TensorOptError(f"operator profile '{self.path}': {problem}; {hint}")


def _row(sample: OpTime) -> tuple[Any, ...]:
    row = (sample.key, sample.family, *sample.work, sample.forward_s, sample.backward_s)
    return *row, _checksum(row)


def _sample(row: tuple[Any, ...]) -> OpTime:
    key, family, dtype, *numbers, backward, view, forward_s, backward_s, _ = row
    forward_flops, backward_flops, moved, launches = numbers
    work = (dtype, forward_flops, backward_flops, moved, launches, bool(backward), bool(view))
    return OpTime(key, family, work, forward_s, backward_s)


def _checksum(row: tuple[Any, ...]) -> str:
    """Of a row without it; equal for what is written and what is read."""
    texts, numbers = row[:3], row[3:]
    try:
        text = repr((texts, [float(number) for number in numbers]))
    except (TypeError, ValueError):
        return "no numbers"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def records(samples: Iterable[OpTime], families: Iterable[str]) -> tuple[OpRecord, ...]:
    """The samples of these families as a plan keeps them, in a fixed order."""
    wanted = set(families)
    chosen = [sample for sample in samples if sample.family in wanted]
    return tuple(
        (s.key, s.family, s.work, s.forward_s, s.backward_s)
        for s in sorted(chosen, key=lambda sample: sample.key)
    )


def known_operators(machine: MachineKey) -> dict[str, OpTime]:
    """What is known of these machines, by key."""

    def load() -> dict[str, OpTime]:
        with OpStore(_path(machine), machine.digest) as store:
            return store.load()

    return read_or({}, load, "operators are measured again")


def keep_operators(machine: MachineKey, samples: list[OpTime]) -> bool:
    """For later jobs; says whether that was possible."""

    def write() -> None:
        with OpStore(_path(machine), machine.digest) as store:
            store.add(samples)

    return is_written(write, "what was measured")


def _path(machine: MachineKey) -> Path:
    return home() / "operators" / f"{machine.digest}.sqlite"
