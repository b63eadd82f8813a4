"""Frontiers of common models whose sizes do not divide, or whose weights are fused.

    python benchmarks/odd_sizes.py --label after

GPT-2 small (a vocabulary of 50257, fused queries, keys and values), BERT base (30522),
Qwen2.5-0.5B (14 heads, 2 of keys and values), ViT base (30 images of 197 patches) and Phi-4-mini
(queries of 24 heads, and keys and values of 8, in one weight; two texts) of Hugging Face on the
meta device, on 4 and 8 H100.
Writes benchmarks/results/odd_sizes.json under the label, and the table of docs/models.md;
what other labels have stays. To compare with another version, run this file there with
``--output`` of the same file, as times of one hour are not those of another

    python benchmarks/odd_sizes.py --beside CHECKOUT

searches with this version and with the one that is built in another folder in turn, and adds
the ratios of their times to the label.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.isolated import run_isolated  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from benchmarks.page import fill_tables, rows_of  # noqa: E402
from benchmarks.published.predict import with_assumed_links, with_fast_attention  # noqa: E402
from tensoropt_torch import Cluster, load_cluster  # noqa: E402
from tensoropt_torch.frontend import capture  # noqa: E402
from tensoropt_torch.planner.candidates import find_frontier  # noqa: E402
from tensoropt_torch.planner.explanation import explanation_of  # noqa: E402
from tensoropt_torch.planner.task import PlanningTask  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "odd_sizes.json"
PAGE = ROOT / "docs" / "models.md"
BATCH, LENGTH = 16, 512
REPEATS = 3
TURNS = 12
# Answers "model, devices" by the CPU seconds of a search; also with older versions.
SEARCHER = """
import sys, time, torch
from benchmarks import odd_sizes as b
cluster = getattr(b, "by_data_sheet", b.load_cluster)("h100-8")
tasks = {}
for line in sys.stdin:
    name, devices = line.strip().rsplit(", ", 1)
    if name not in tasks:
        with torch.device("meta"):
            model, inputs = b.MODELS[name]()
        tasks[name] = b.PlanningTask(b.capture(model, (), inputs), cluster)
    start = time.process_time()
    b.find_frontier(tasks[name], int(devices))
    print(time.process_time() - start, flush=True)
"""
ENDS = ("smallest", "fastest")
Made = tuple[nn.Module, dict[str, torch.Tensor]]


def _tokens(batch: int = BATCH) -> dict[str, torch.Tensor]:
    tokens = torch.zeros(batch, LENGTH, dtype=torch.long)
    return {"input_ids": tokens, "labels": tokens}


def gpt2() -> Made:
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(use_cache=False, **dropouts)
    return transformers.GPT2LMHeadModel(config), _tokens()


def bert() -> Made:
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**dropouts)), _tokens()


def qwen() -> Made:
    config = transformers.Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return transformers.Qwen2ForCausalLM(config), _tokens()


def vit() -> Made:
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**dropouts))
    images, labels = torch.zeros(30, 3, 224, 224), torch.zeros(30, dtype=torch.long)
    return model, {"pixel_values": images, "labels": labels}


def phi4_mini() -> Made:
    config = transformers.Phi3Config(
        vocab_size=200064,
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=32,
        num_attention_heads=24,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        pad_token_id=0,
        use_cache=False,
    )
    return transformers.Phi3ForCausalLM(config), _tokens(2)


MODELS: dict[str, Callable[[], Made]] = {
    "GPT-2 small": gpt2,
    "BERT base": bert,
    "Qwen2.5-0.5B": qwen,
    "ViT base": vit,
    "Phi-4-mini": phi4_mini,
}


def by_data_sheet(preset: str) -> Cluster:
    """The preset as it was when the first version was measured."""
    return with_assumed_links(with_fast_attention(load_cluster(preset)))


def measure(name: str, devices: int) -> dict[str, Any]:
    """The ends of the frontier, what it takes to find it, and what is left whole."""
    with torch.device("meta"):
        model, inputs = MODELS[name]()
    captured = capture(model, (), inputs)
    task = PlanningTask(captured, by_data_sheet("h100-8"))
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        frontier = find_frontier(task, devices)
        seconds.append(time.process_time() - start)
    whole = explanation_of(captured, task.settings(devices)).fallbacks
    return {
        "points": len(frontier),
        "bound": frontier.guarantee.epsilon,
        "smallest": [frontier.smallest.memory_bytes, frontier.smallest.time_s],
        "fastest": [frontier.fastest.memory_bytes, frontier.fastest.time_s],
        "search_cpu_s": sorted(seconds),
        "left_whole": len(whole),
        "left_whole_operators": sorted({node.target for node in whole}),
    }


class Searcher:
    """A process that searches with the version in a folder."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-c", SEARCHER]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True
        )

    def seconds(self, run: str) -> float:
        """CPU seconds of one search, of ``"model, devices"``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(run, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def compare(runs: list[str], other: Path) -> dict[str, list[float]]:
    """How long searches of this version take of those of another one: quartiles of the ratios
    of turns."""
    searchers = Searcher(ROOT), Searcher(other.resolve())
    ratios = {}
    try:
        for run in runs:
            for searcher in searchers:
                searcher.seconds(run)
            turns = [[searcher.seconds(run) for searcher in searchers] for _ in range(TURNS)]
            ratios[run] = statistics.quantiles([ours / theirs for ours, theirs in turns], n=4)
    finally:
        for searcher in searchers:
            searcher.close()
    return ratios


def table(records: dict[str, Any]) -> str:
    """Before and after, as Markdown."""
    head = [
        "model, devices",
        "version",
        "smallest: GiB, ms",
        "fastest: GiB, ms",
        "left whole",
        "tables and search, CPU s",
        "of before, in turn",
    ]
    rows = []
    labels = list(records)
    for key in records[labels[-1]]["runs"]:
        for label in labels:
            run = records[label]["runs"][key]
            ends = [f"{run[end][0] / 2**30:.3f}, {run[end][1] * 1e3:.2f}" for end in ENDS]
            seconds = f"{run['search_cpu_s'][REPEATS // 2]:.2f}"
            low, middle, high = run.get("of_before", (0, 0, 0))
            ratio = f"{middle:.2f} ({low:.2f} to {high:.2f})" if middle else ""
            rows.append([key, label, *ends, str(run["left_whole"]), seconds, ratio])
    return rows_of(head, rows)


def main() -> None:
    """Measure, write the JSON, fill the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--label", default="after")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--beside", type=Path, help="a folder with another version, built")
    options = parser.parse_args()
    names = [f"{name}, {count}" for name in options.models for count in options.devices]
    records = json.loads(options.output.read_text()) if options.output.exists() else {}
    runs = records.get(options.label, {}).get("runs", {})
    if options.beside is None:
        of_names = ((name, *name.rsplit(", ", 1)) for name in names)
        runs |= {key: run_isolated(measure, name, int(n)) for key, name, n in of_names}
    else:
        for name, ratios in compare(names, options.beside).items():
            runs[name]["of_before"] = ratios
    records[options.label] = {"machine": machine(), "runs": runs}
    options.output.write_text(json.dumps(records, indent=1) + "\n")
    if options.output == RESULT:
        fill_tables(PAGE, {"odd_sizes": table(records)})


if __name__ == "__main__":
    main()
