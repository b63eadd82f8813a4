"""The command ``tensoropt advise``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table

from tensoropt_torch import api
from tensoropt_torch.advising import MOST_MICRO_BATCHES, Advice, Beside, Price
from tensoropt_torch.advising.table import COLUMNS, cells_of
from tensoropt_torch.cli.arguments import (
    add_memory_limit,
    add_model_source,
    add_planning,
    call_user,
    check_one_source,
    example_from,
    load_model,
    planning_of,
    read_batch,
    read_counts,
    write_json,
    write_text,
)
from tensoropt_torch.config.machine_kinds import cluster_for
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.model_configs import BatchSize, example_of_config
from tensoropt_torch.tasks import Example

_FIGURES = ("devices", "tokens/s", "each", "MFU", "days", "price")
_WIDE = 120  # characters of a terminal


def add_advise(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    add_model_source(parser)
    parser.add_argument(
        "--batch",
        type=_read_batches,
        default=[],
        help="rows x tokens of the global batch, one or several: 256x4096,32x32768; of a function "
        "its arguments",
    )
    parser.add_argument(
        "--clusters",
        dest="machines",
        type=lambda text: text.split(","),
        required=True,
        help="kinds of machines, presets or cluster files: h100,a100-80gb,l40s",
    )
    parser.add_argument(
        "--devices",
        type=_read_range,
        required=True,
        help="numbers of devices: 8,16,24, or 8..256 for 8, 16, ..., 256",
    )
    for unit in ("tokens", "samples", "steps"):
        parser.add_argument(f"--{unit}", type=float, help=f"how many {unit} are trained: 100e9")
    parser.add_argument("--price", type=_read_price, help="of a device for an hour: 2.5USD")
    parser.add_argument("--beside", choices=get_args(Beside), default="marked")
    add_memory_limit(parser)
    add_planning(parser)
    parser.set_defaults(cluster=None, max_micro_batches=MOST_MICRO_BATCHES)
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--report", type=Path, help="write a page to this HTML file")


def run_advise(options: argparse.Namespace, console: Console) -> None:
    """Print the table, and write it."""
    for machine in options.machines:  # before a model is built, which takes seconds
        for count in options.devices:
            cluster_for(machine, count)
    advice = api.advise(
        dict(_examples(options)),
        machines=options.machines,
        device_counts=options.devices,
        tokens=options.tokens,
        samples=options.samples,
        steps=options.steps,
        price=options.price,
        beside=options.beside,
        memory_limit=options.memory_limit,
        planning=planning_of(options),
    )
    console.print(advice.title, markup=False, highlight=False)
    for table in _tables(advice, console.width):
        console.print(table)
    reasons = (f"{row.where}: {row.because}" for row in advice if row.because)
    for text in (*advice.answers, *reasons, *advice.notes):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if options.markdown:
        write_text(options.markdown, advice.to_markdown() + "\n")
    if options.json:
        write_json(options.json, {"notes": advice.notes, "rows": advice.to_records()})
    if options.report:
        advice.report(options.report)


def _tables(advice: Advice, width: int) -> Iterator[Table]:
    """One for each model on each kind of machine, of the columns for which there is room."""
    marks = advice.marks
    titled = {"model, batch", "machines"}
    left_out = titled if width >= _WIDE else titled | {"each", "what it does"}
    kept = [index for index, name in enumerate(COLUMNS) if name not in left_out]
    for (model, machine), rows in groupby(advice, lambda row: (row.model, row.machine)):
        table = Table(
            title=f"{model} on {machine}", padding=(0, 1, 0, 0), show_edge=False, pad_edge=False
        )
        for index in kept:
            name = COLUMNS[index]
            table.add_column(name, no_wrap=name in _FIGURES, overflow="fold", min_width=len(name))
        for row in rows:
            cells = cells_of(row, marks.get(row, ""))
            table.add_row(*(cells[index] for index in kept))
        yield table


def _examples(options: argparse.Namespace) -> Iterator[tuple[str, Example]]:
    """By the name of the model and its batch; of a function without ``--batch`` its own."""
    check_one_source(options)
    name = options.config or options.model
    if options.config is not None and not options.batch:
        raise TensorOptError(
            f"--config {options.config} needs --batch: rows x tokens of the global batch, such as "
            "--batch 256x4096"
        )
    if not options.batch:
        yield _short(name), _cast(options, load_model(options.model))
    for batch in options.batch:
        if options.config is not None:
            example = example_of_config(options.config, batch)
        else:
            found = call_user("model", options.model, batch.rows, batch.tokens)
            example = example_from(found, options.model)
        yield f"{_short(name)} {batch}", _cast(options, example)


def _cast(options: argparse.Namespace, example: Example) -> Example:
    return replace(example, autocast=options.autocast) if options.autocast else example


def _short(name: str) -> str:
    """``llama`` of ``hf:llama,hidden_size=4096``; of a path its last parts."""
    first = name.removeprefix("hf:").partition(",")[0]
    return first if name.startswith("hf:") else "/".join(Path(first).parts[-2:])


def _read_batches(text: str) -> list[BatchSize]:
    return [read_batch(part) for part in text.split(",")]


def _read_range(text: str) -> list[int]:
    """``8,16``, or ``8..256``: doubled."""
    first, dots, last = text.partition("..")
    if not dots:
        return read_counts(text)
    try:
        count, most = int(first), int(last)
    except ValueError:
        count = most = 0
    if not 1 <= count <= most:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no range of devices; give one such as 8..256, or 8,16,24"
        )
    found = []
    while count <= most:
        found.append(count)
        count *= 2
    return found


def _read_price(text: str) -> Price:
    """``2.5USD``, or ``2.5``."""
    number = text.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    try:
        per_hour = float(number)
    except ValueError:
        per_hour = 0.0
    if not 0 < per_hour < float("inf"):
        raise argparse.ArgumentTypeError(
            f"'{text}' is no price; give that of a device for an hour, such as 2.5USD"
        )
    return Price(per_hour, text[len(number) :].strip(), "given")
