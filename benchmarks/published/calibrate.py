"""The share of the peak that attention reaches, calibrated on half of the rows.

One figure is calibrated, ``device.efficiency.attention`` of all cluster files. Rows whose
prediction has one end are dealt out by their numbers within a source, without a look at errors: the
first, third, ... are judged, the second, fourth, ... are calibrated on. A source of one row is
judged.

A step takes longer by the same for each unit of 1 / share, as attention computes for longer than it
moves its operands. So two predictions of a row say what it is for any share::

    time(share) = time(matmul) + (1 / share - 1 / matmul) * slope
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.published.rows import Row, cluster_of

SHARES = tuple(share / 100 for share in range(5, 61))


def calibrated_on(rows: Sequence[Row]) -> list[Row]:
    """The half of the rows that figures are calibrated on."""
    found: list[Row] = []
    for source in dict.fromkeys(row.source for row in rows):
        found += [row for row in rows if row.source == source and row.has_one_end][1::2]
    return found


def error_with(row: Row, result: Mapping[str, Any], share: float) -> float:
    """The error of the row's speed if attention reached that share, from its predictions with that
    of matrix products ("links") and with that of its cluster file."""
    efficiency = cluster_of(row).device.efficiency
    assert efficiency.attention is not None
    fast, own = (1 / result[key][0]["tokens_per_s"] for key in ("links", "predicted"))
    slope = (own - fast) / (1 / efficiency.attention - 1 / efficiency.matmul)
    time_s = fast + (1 / share - 1 / efficiency.matmul) * slope
    return float(1 / time_s / result["published"]["tokens_per_s"] - 1)


def calibrated_share(rows: Sequence[Row], results: Mapping[str, Any]) -> float:
    """The share in hundredths whose errors on these rows are the smallest without sign."""

    def mean_error(share: float) -> float:
        errors = (error_with(row, results[str(row.id)], share) for row in rows)
        return statistics.mean(map(abs, errors))

    return min(SHARES, key=mean_error)
