"""What strategies of a model took in training, in files: one for each model under each
settings on each kind of machines.

    store = StrategyStore({"model": captured.fingerprint, ...})
    store.save(strategies)      # at once or not at all
    store.load()                # {seed: KeptStrategy}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tensoropt_torch.config.records import NotNegative, Positive, Record
from tensoropt_torch.measure.kept.conditioned import ConditionedFile
from tensoropt_torch.measure.kept.sealed import SealedFormat

FILE = SealedFormat("file of strategies that were run", 2, "run them again")


@dataclass(frozen=True)
class KeptStrategy(Record):
    """A random strategy and what it took, in s and bytes per device.

    Attributes:
        seed: from which it was drawn, by the costs of that time.
        memory_bytes: the sum of the search.
        configs, edges: the strategy, as in a plan: labels by node, and words by edge.
        step_s, network_s, peak_bytes: as measured.
        spread: how much longer its longest run was than its shortest, as a share; None if
            there was one.
        simulated_bytes: the simulated peak, if it was simulated.
    """

    seed: int
    memory_bytes: Positive
    configs: tuple[str, ...]
    edges: tuple[tuple[int, str], ...]
    step_s: Positive
    network_s: NotNegative
    peak_bytes: Positive
    spread: NotNegative | None = None
    simulated_bytes: Positive | None = None


@dataclass(frozen=True)
class _Content(Record):
    strategies: tuple[KeptStrategy, ...]


class StrategyStore:
    """The file of the strategies that were run under some ``conditions``, plain data that is
    equal for equal ones only."""

    def __init__(self, conditions: Mapping[str, Any]) -> None:
        self._file = ConditionedFile("strategies", FILE, conditions)
        self.path = self._file.path

    def load(self) -> dict[int, KeptStrategy]:
        """The strategies by seed; none if there is no file.

        Raises:
            TensorOptError: the file is damaged, of another version or conditions.
        """
        content = self._file.read_as(_Content)
        return {} if content is None else {kept.seed: kept for kept in content.strategies}

    def save(self, strategies: Iterable[KeptStrategy]) -> None:
        """Replaces the file.

        Raises:
            TensorOptError: it cannot be written.
        """
        self._file.write(asdict(_Content(tuple(sorted(strategies, key=lambda kept: kept.seed)))))
