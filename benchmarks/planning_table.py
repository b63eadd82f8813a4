"""The tables of planning times of large models: in parts in docs/search.md, and the ways of
planning side by side in docs/comparison.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.page import rows_of

# Model, devices, with recomputation, micro-batches and stages at most.
Row = tuple[str, int, bool, int, int]

TITLES = {
    "hf-llama-8b": "Llama 3 8B, 64 x 8,192",
    "hf-llama-70b": "Llama 3 70B, 128 x 8,192",
    "hf-llama-405b": "Llama 3 405B, 512 x 8,192",
    "hf-llama-405b-2048": "Llama 3 405B, 2,048 x 8,192",
    "hf-rwkv-8": "RWKV, 2 layers, 8 x 8",
    "hf-rwkv-32": "RWKV, 2 layers, 8 x 32",
    "hf-xlstm-8": "xLSTM, 2 layers, 8 x 8",
}
LLAMAS = {
    ("hf-llama-8b", 64),
    ("hf-llama-70b", 256),
    ("hf-llama-405b", 1024),
    ("hf-llama-405b-2048", 16384),
}
WAYS = {
    (False, 1, 1): "plain",
    (True, 1, 1): "recomputation",
    (True, 8, 1): "both",
    (True, 16, 8): "both, and stages",
}
# Where stages are planned as well.
IN_STAGES = (("hf-llama-8b", 64), ("hf-llama-70b", 512), ("hf-llama-405b", 1024))
HEAD = (
    "model, tokens",
    "devices",
    "space",
    "capture",
    "micro-batches",
    "tables and search",
    "in all",
    "processor time",
    "peak memory",
    "points",
)


def _rows() -> Iterator[Row]:
    for model, devices in sorted(LLAMAS, key=lambda llama: llama[1]):
        for way in WAYS:
            if way[-1] == 1:
                yield model, devices, *way
    for model, devices in IN_STAGES:
        yield model, devices, True, 16, 8
    for model in TITLES:
        if model not in {name for name, _ in LLAMAS}:
            yield model, 8, False, 1, 1


ROWS: tuple[Row, ...] = tuple(_rows())

COMPARED_HEAD = (
    "model, tokens",
    "devices",
    "plain",
    "with recomputation",
    "and up to 8 micro-batches",
    "points",
    "memory",
)
THREE_WAYS = tuple(way for way in WAYS if way[-1] == 1)


def compared_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """The Llamas in three ways side by side, in Markdown."""
    found = {_row_of(run): run for run in runs if run.get("cluster") == "h100"}
    lines = [
        _compared(model, devices, [found[model, devices, *way] for way in THREE_WAYS])
        for model, devices in sorted(LLAMAS, key=lambda llama: llama[1])
    ]
    return rows_of(COMPARED_HEAD, lines)


def _compared(model: str, devices: int, several: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        TITLES[model],
        f"{devices:,}",
        *(f"{run['total_s'] - run['build_s']:.1f} s" for run in several),
        ", ".join(f"{run['points']:,}" for run in several),
        f"{max(run['peak_rss_bytes'] for run in several) / 2**30:.1f} GiB",
    ]


def planning_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """In Markdown, of the rows that were measured."""
    found = {_row_of(run): run for run in runs if run.get("cluster") == "h100"}
    return rows_of(HEAD, [_cells(row, found[row]) for row in ROWS if row in found])


def _row_of(run: Mapping[str, Any]) -> Row:
    most = run.get("max_micro_batches", 1)
    recompute, stages = run.get("recompute", False), run.get("max_stages", 1)
    return run["model"], run["devices"], recompute, most, stages


def _cells(row: Row, run: Mapping[str, Any]) -> list[str]:
    model, devices, recompute, most, stages = row
    planning = run["total_s"] - run["build_s"]
    searching = planning - run["capture_s"] - run["micro_batches_s"]
    return [
        TITLES[model],
        f"{devices:,}",
        WAYS[recompute, most, stages],
        f"{run['capture_s']:.1f} s",
        f"{run['micro_batches_s']:.1f} s" if most > 1 else "-",
        f"{searching:.1f} s",
        f"{planning:.1f} s",
        f"{run['cpu_s']:.1f} s",
        f"{run['peak_rss_bytes'] / 2**30:.1f} GiB",
        f"{run['points']:,}",
    ]
