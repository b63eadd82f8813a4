"""How well the costs predict: what strategies were predicted to take next to what they took
when they were run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.pages.charts import Chart, Line
from tensoropt_torch.pages.page import Page, write_page
from tensoropt_torch.planner.memory_limits import Predictor

# With fewer strategies their worst case says too little: the default is kept where
# it is the more careful one.
FEW_STRATEGIES = 10

# A strategy whose runs differ by more met a disturbed machine at least once.
DISTURBED_SPREAD = 0.25


@dataclass(frozen=True)
class ValidatedStrategy:
    """One strategy: predicted and measured step time and network time in s, and memory
    per device in bytes: the sum of the search, the simulated and the measured peak.

    Times are those of the run with the shortest step; ``spread`` is how much longer the
    longest one took, as a share of it, None if there was one run. ``collectives`` is how
    many the predicted step has. ``simulated_bytes`` is None where it was not simulated.
    """

    seed: int
    step_s: float
    measured_step_s: float
    network_s: float
    measured_network_s: float
    memory_bytes: float
    simulated_bytes: float | None
    measured_memory_bytes: float
    spread: float | None = None
    collectives: float = 0.0

    def predicted_bytes(self, predictor: Predictor) -> float | None:
        """The memory that is compared with a limit; None where it was not simulated."""
        return self.memory_bytes if predictor == "sums" else self.simulated_bytes


@dataclass(frozen=True)
class Validation:
    """All strategies that were run, and what follows from them.

    Attributes:
        asked: how many were to be run, where the time was over before; else None.
    """

    rows: tuple[ValidatedStrategy, ...]
    asked: int | None = None

    def __repr__(self) -> str:
        return (
            f"Validation({self.amount}; mean errors: step time "
            f"{self.step_error:.1%}, network time {self.network_error:.1%}, memory "
            f"{self.memory_error():.1%})"
        )

    @property
    def amount(self) -> str:
        """How many strategies were run, in words."""
        of = "" if self.asked is None else f" of {self.asked}"
        return f"{len(self.rows)}{of} strategies"

    @property
    def step_error(self) -> float:
        """The mean relative error of the step time."""
        return mean_error([(row.step_s, row.measured_step_s) for row in self.rows])

    @property
    def network_error(self) -> float:
        """That of the network time, over strategies that use the network."""
        return mean_error([(row.network_s, row.measured_network_s) for row in self.rows])

    def memory_error(self, predictor: Predictor = "sums") -> float:
        """That of the peak memory."""
        return mean_error(self._memory(predictor))

    def _memory(self, predictor: Predictor) -> list[tuple[float, float]]:
        """Predicted and measured bytes, where there are both."""
        return [
            (predicted, row.measured_memory_bytes)
            for row in self.rows
            if (predicted := row.predicted_bytes(predictor)) is not None
        ]

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of predicted and measured step time."""
        return spearman(
            [row.step_s for row in self.rows], [row.measured_step_s for row in self.rows]
        )

    @property
    def spread(self) -> float:
        """The mean difference between runs of the same strategy; NaN if each was run
        once."""
        spreads = [row.spread for row in self.rows if row.spread is not None]
        return statistics.fmean(spreads) if spreads else math.nan

    def report(self, path: str | Path) -> None:
        """Writes a page of predicted against measured figures to one HTML file.

        Raises:
            TensorOptError: Jinja2 is not installed, nothing was run, or the file
                cannot be written.
        """
        write_page(path, validation_page(self))

    def undisturbed(self) -> Validation:
        """The strategies whose runs differ by at most ``DISTURBED_SPREAD``."""
        calm = (row for row in self.rows if (row.spread or 0.0) <= DISTURBED_SPREAD)
        return replace(self, rows=tuple(calm))

    def memory_fraction(self, predictor: Predictor | None, default: float) -> float:
        """The part of a device's memory that predictions may fill, so that no strategy
        that was run would have needed more than the device has; of few strategies not
        more than the default. None: peaks where they were simulated, else sums."""
        pairs = self._memory(predictor or "simulated")
        if predictor is None and not pairs:
            pairs = self._memory("sums")
        worst = max((measured / predicted for predicted, measured in pairs), default=1.0)
        fraction = min(1.0, 1 / worst)
        return min(fraction, default) if len(pairs) < FEW_STRATEGIES else fraction

    def to_record(self) -> dict[str, Any]:
        """As plain values."""
        calm = self.undisturbed()
        return {
            "strategies": len(self.rows),
            "asked": self.asked or len(self.rows),
            **self.time_figures(),
            "spread": self.spread,
            "undisturbed": {"strategies": len(calm.rows), **calm.time_figures()},
            "memory_error": self.memory_error(),
            "simulated_memory_error": self.memory_error("simulated"),
            "memory_fraction": self.memory_fraction("sums", 1.0),
            "simulated_memory_fraction": self.memory_fraction("simulated", 1.0),
            "rows": [asdict(row) for row in self.rows],
        }

    def time_figures(self) -> dict[str, float]:
        """What the times say, as plain values."""
        return {
            "step_error": self.step_error,
            "network_error": self.network_error,
            "rank_correlation": self.rank_correlation,
        }


def validation_page(validation: Validation) -> str:
    """Predicted against measured step time, network time and memory, in HTML."""
    rows = validation.rows
    if not rows:
        raise TensorOptError(
            "there is nothing to report: no strategy was run; give ValidationOptions(budget_s=...) "
            "more, or None for no limit"
        )
    return Page("validation.html.jinja", f"Predicted and measured: {validation.amount}").html(
        [
            _chart("step time (ms)", {r.seed: (r.step_s, r.measured_step_s) for r in rows}, 1e3),
            _chart(
                "network time (ms)",
                {r.seed: (r.network_s, r.measured_network_s) for r in rows},
                1e3,
            ),
            _chart(
                "memory per device (GiB)",
                {r.seed: (r.memory_bytes, r.measured_memory_bytes) for r in rows},
                2**-30,
            ),
        ],
        validation=validation,
        calm=validation.undisturbed(),
        disturbed_spread=DISTURBED_SPREAD,
    )


def _chart(of: str, pairs: Mapping[int, tuple[float, float]], scale: float) -> Chart:
    """Measured over predicted values by seed, in other units."""
    predicted = [one * scale for one, _ in pairs.values()]
    measured = [other * scale for _, other in pairs.values()]
    texts = [
        f"seed {seed}: predicted {one:.4g}, measured {other:.4g}"
        for seed, one, other in zip(pairs, predicted, measured, strict=True)
    ]
    return Chart(
        of.split()[0],
        f"Measured over predicted {of}; the table below has the figures",
        [Line("strategies", predicted, measured, texts, "points")],
        f"predicted {of}",
        f"measured {of}",
        equal=True,
    )


def mean_error(pairs: Sequence[tuple[float, float]]) -> float:
    """The mean of |predicted / measured - 1|, over pairs that were measured; NaN
    without any."""
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs if measured > 0]
    return statistics.fmean(errors) if errors else math.nan


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The rank correlation; equal values share the mean of their ranks. NaN for fewer
    than two values, or if all of one side are equal."""
    if len(a) < 2 or len(set(a)) == 1 or len(set(b)) == 1:
        return math.nan
    return statistics.correlation(_ranks(a), _ranks(b))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    return [first[value] + (order.count(value) - 1) / 2 for value in values]
