"""Frontiers, plans and simulated peaks of the models of ``benchmarks.picks``, bit for bit.

    python -m benchmarks.recorded before.json          # before a change that is to change none
    python -m benchmarks.recorded --beside before.json # after it: prints what differs, exits with 1

Each model is planned for one machine, with recomputation and micro-batches. What is
recorded of it: the fingerprint of its graph, all points with their guarantee, and of three plans
(the fastest, the middle one, the smallest) their choices and the simulated peak of rank 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.isolated import run_isolated
from benchmarks.picks.models import MODELS, example_of
from tensoropt_torch import Example, Frontier, TensorOptError, find_frontier, simulate_memory

CLUSTER = "h100-8"
LEFT_OUT = ("llama-8b-256", "llama-70b")  # of which each takes minutes
Record = dict[str, Any]


def recorded(name: str) -> Record:
    """Of one model; floating-point numbers as ``float.hex`` gives them."""
    example = example_of(name)
    frontier = _frontier(example, name)
    picked = sorted({0, len(frontier) // 2, len(frontier) - 1})
    plans = [frontier[index].plan for index in picked]
    return {
        "fingerprint": plans[0].parts[0].fingerprint,
        "points": [[point.memory_bytes.hex(), point.time_s.hex()] for point in frontier],
        "guarantee": repr(frontier.guarantee),
        "choices": [asdict(plan.parts[0].choices) for plan in plans],
        "peaks": [simulate_memory(example, plan).peak_bytes for plan in plans],
    }


def _frontier(example: Example, name: str) -> Frontier:
    """In two micro-batches as well, where the model can be run so."""
    options: Any = {"cluster": CLUSTER, "optimizer": MODELS[name].optimizer, "recompute": True}
    try:
        return find_frontier(example, **options, max_micro_batches=2)
    except TensorOptError:
        return find_frontier(example, **options)


def different(before: Record, after: Record) -> list[str]:
    """What of a model is not the same, in words."""
    return [
        f"{part}: {_extract(before.get(part))} before, {_extract(after.get(part))} now"
        for part in sorted(before.keys() | after.keys())
        if before.get(part) != after.get(part)
    ]


def _extract(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 100 else f"{text[:97]}..."


def main() -> int:
    """Records, or compares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path, nargs="?", help="where the record is written")
    parser.add_argument("--beside", type=Path, help="an earlier record")
    parser.add_argument("--models", nargs="+", choices=MODELS)
    options = parser.parse_args()
    names = options.models or [name for name in MODELS if name not in LEFT_OUT]
    # What a file holds, so that both sides of a comparison have been through JSON.
    found = {name: json.loads(json.dumps(run_isolated(recorded, name))) for name in names}
    if options.file:
        options.file.write_text(json.dumps(found, indent=1))
    if not options.beside:
        return 0
    before = json.loads(options.beside.read_text())
    differences = {name: different(before.get(name, {}), found[name]) for name in names}
    for name, lines in differences.items():
        print(f"{name}: {'the same' if not lines else ''}", *lines, sep="\n  ")
    return int(any(differences.values()))


if __name__ == "__main__":
    sys.exit(main())
