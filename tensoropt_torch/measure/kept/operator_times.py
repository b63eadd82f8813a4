"""Measured operators in a file of each kind of machines, which all models and runs share.

    store = OpStore(machine)
    store.add(samples)      # at once or not at all
    store.load()            # {key: OpTime}

Several processes may add at once, since each waits for the other's file. What one has added stays
if it is killed a moment later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tensoropt_torch.config.records import Record
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.measure.kept.conditioned import ConditionedFile
from tensoropt_torch.measure.kept.files import BUSY_S, is_written, locked, read_or
from tensoropt_torch.measure.kept.sealed import SealedFormat
from tensoropt_torch.measure.machine.key import MachineKey
from tensoropt_torch.plan import OpRecord

FILE = SealedFormat("operator profile", 4, "measure again")


@dataclass(frozen=True)
class OpTime(Record):
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


@dataclass(frozen=True)
class _Content(Record):
    operators: tuple[OpTime, ...]


class OpStore:
    """The file of the operators that were measured on such machines; it need not exist."""

    def __init__(self, machine: MachineKey) -> None:
        self._file = ConditionedFile("operators", FILE, asdict(machine))
        self.path = self._file.path

    def add(self, samples: Iterable[OpTime], busy_s: float = BUSY_S) -> None:
        """Keeps the samples; those with a known key replace what was known.

        Raises:
            TensorOptError: as for ``load``, another process has the file for longer than
                ``busy_s``, or it cannot be written; what it had stays.
        """
        with locked(self.path, busy_s):
            known = self.load() | {sample.key: sample for sample in samples}
            in_order = sorted(known.values(), key=lambda sample: sample.key)
            self._file.write(asdict(_Content(tuple(in_order))))

    def load(self) -> dict[str, OpTime]:
        """All samples by key; none if there is no file.

        Raises:
            TensorOptError: the file is damaged, of another version or of other machines; it
                says which file and what to do.
        """
        content = self._file.read_as(_Content)
        return {} if content is None else {sample.key: sample for sample in content.operators}


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
    return read_or({}, OpStore(machine).load, "operators are measured again")


def keep_operators(machine: MachineKey, samples: list[OpTime]) -> bool:
    """For later jobs; says whether that was possible."""
    return is_written(lambda: OpStore(machine).add(samples), "what was measured")
