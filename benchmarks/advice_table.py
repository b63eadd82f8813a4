"""The tables of docs/advise.md: Llama 3 8B and 70B with short and long rows on four kinds of
machines, 8 to 256 devices of each.

    python -m benchmarks.advice_table [--draw]

A process plans one model with one batch, two of them at once. Memory is compared with sums, which
takes seconds for each number of devices; a simulated peak of 80 layers in many micro-batches takes
longer than all of that. Writes benchmarks/results/advice.json and the page; with --draw
the page alone, from what is there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.page import fill_tables
from tensoropt_torch import OptimizerModel, SearchSettings, advise
from tensoropt_torch.advising.table import COLUMNS, cells_of, markdown_table
from tensoropt_torch.model_configs import BatchSize, example_of_config

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "advice.json"
PAGE = ROOT / "docs" / "advise.md"

MACHINES = ("h100", "a100-80gb", "l40s", "rtx4090")
DEVICES = (8, 16, 32, 64, 128, 256)
TOKENS = 100e9
_ALIKE = "num_key_value_heads=8,vocab_size=128256,max_position_embeddings=131072,dtype=bfloat16"
MODELS = {
    "8b": "hf:llama,hidden_size=4096,num_hidden_layers=32,num_attention_heads=32,"
    f"intermediate_size=14336,{_ALIKE}",
    "70b": "hf:llama,hidden_size=8192,num_hidden_layers=80,num_attention_heads=64,"
    f"intermediate_size=28672,{_ALIKE}",
}
BATCHES = {"4k": BatchSize(256, 4096), "32k": BatchSize(32, 32768)}
COMPARED = ("8b", "4k")  # beside what others do
HIDDEN = ("model, batch", "strategy")  # columns that say nothing in a table of one


def advised(model: str, batch: str) -> dict[str, Any]:
    """Rows as texts and as figures, answers, notes and seconds of one model with one batch."""
    began, processor = time.perf_counter(), time.process_time()
    name = f"Llama 3 {model.upper()}, {BATCHES[batch]}"
    advice = advise(
        {name: example_of_config(MODELS[model], BATCHES[batch])},
        machines=MACHINES,
        device_counts=DEVICES,
        tokens=TOKENS,
        beside="marked" if (model, batch) == COMPARED else "none",
        optimizer=OptimizerModel("adamw", "float32", True),
        memory="sums",
        search=SearchSettings(num_threads=1),
    )
    marks = advice.marks
    return {
        "cells": [cells_of(row, marks.get(row, "")) for row in advice],
        "answers": advice.answers,
        "notes": advice.notes,
        "records": advice.to_records(),
        "wall_s": time.perf_counter() - began,
        "processor_s": time.process_time() - processor,
    }


def _table(found: dict[str, Any]) -> str:
    shown = [index for index, name in enumerate(COLUMNS) if name not in HIDDEN]
    ours = [cells for cells in found["cells"] if cells[3] == "TensorOpt"]
    rows = [[cells[index] for index in shown] for cells in ours]
    return markdown_table(rows, [COLUMNS[index] for index in shown])


def _beside(found: dict[str, Any]) -> str:
    """The marked rows with others below them, and why."""
    cells = found["cells"]
    kept = [
        one
        for one, after in zip(cells, [*cells[1:], None], strict=True)
        if one[3] != "TensorOpt" or (after is not None and after[3] != "TensorOpt")
    ]
    reasons = "\n".join(
        f"- on {row['devices']} of {row['machine']} {row['because']}."
        for row in found["records"]
        if row["because"]
    )
    table = markdown_table([one[1:] for one in kept], COLUMNS[1:])
    return f"{table}\n\nTensorOpt's is\n\n{reasons}"


def _largest_first(key: tuple[str, str]) -> tuple[int, int]:
    model, batch = key
    return -list(MODELS).index(model), list(BATCHES).index(batch)


def draw(found: Mapping[str, dict[str, Any]]) -> None:
    """The tables of the page."""
    tables = {f"advice_{key}": _table(one) for key, one in found.items()}
    tables["advice_beside"] = _beside(found["_".join(COMPARED)])
    if PAGE.exists():
        fill_tables(PAGE, tables)


def main() -> None:
    """Plans all, and writes the results and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="plan nothing")
    if parser.parse_args().draw:
        draw(json.loads(RESULTS.read_text())["models"])
        return
    asked = [(model, batch) for batch in BATCHES for model in MODELS]
    # Forked, after what all need was imported.
    context = multiprocessing.get_context("fork")
    began = time.perf_counter()
    for model, batch in asked:
        example_of_config(MODELS[model], BATCHES[batch])
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        # The largest first, so that both processes end together.
        waiting = {key: pool.submit(advised, *key) for key in sorted(asked, key=_largest_first)}
        found = {"_".join(key): waiting[key].result() for key in asked}
    seconds = time.perf_counter() - began
    RESULTS.write_text(json.dumps({"wall_s": seconds, "models": found}, indent=1) + "\n")
    draw(found)
    print(f"{seconds:.0f} s in all")
    for key, one in found.items():
        print(f"{key}: {one['processor_s']:.0f} s of processor time", *one["answers"], sep="\n  ")


if __name__ == "__main__":
    main()
