"""Advice on a small model, beside the options that it is made of, and on the command line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from tensoropt_torch import (
    _C,
    Example,
    PlanningOptions,
    SearchSettings,
    TensorOptError,
    advise,
    cli,
    find_frontier,
    load_cluster,
)
from tensoropt_torch.advising import OURS, Price
from tensoropt_torch.advising.least_memory import LeastMemory
from tensoropt_torch.advising.parts import Parts
from tensoropt_torch.advising.spaces import Spaces
from tensoropt_torch.config.machine_kinds import cluster_for
from tensoropt_torch.tasks import task_of

CONFIG = (
    "hf:llama,hidden_size=64,num_hidden_layers=1,num_attention_heads=4,num_key_value_heads=2,"
    "intermediate_size=128,vocab_size=256,dtype=bfloat16"
)


def example(rows: int = 64) -> Example:
    with torch.device("meta"):
        layers = [nn.Linear(256, 256) for _ in range(3)]
        model = nn.Sequential(*layers, nn.Flatten(0))
        return Example(model, (torch.empty(rows, 256),), loss_fn=_loss, targets=())


def _loss(output: torch.Tensor) -> torch.Tensor:
    return output.pow(2).mean()


def test_where_all_fits_it_is_the_fastest_of_the_frontier() -> None:
    found = advise(
        example(),
        machines=["h100"],
        device_counts=[4, 2],
        steps=3600,
        price=Price(2, "EUR", "me"),
        beside="none",
        max_micro_batches=1,
    )
    assert [(row.num_devices, row.cluster) for row in found] == [(2, "h100-2"), (4, "h100-4")]
    for row in found:
        frontier = find_frontier(example(), cluster=row.cluster, recompute=True)
        assert row.time_s == pytest.approx(frontier.fastest.time_s, rel=0.01)
        assert row.money == pytest.approx(row.time_s * row.num_devices * 2)
        assert row.rows == 64 and row.tokens == 0


def test_what_does_not_fit_says_what_it_needs() -> None:
    (row,) = advise(
        example(),
        machines=["h100"],
        device_counts=[2],
        samples=64,
        memory_limit=1000,
        memory="sums",
        max_micro_batches=1,
    )
    least = find_frontier(example(), cluster="h100-2", recompute=True).least_memory_bytes
    assert not row.fits and row.memory_bytes == pytest.approx(least)
    assert row.missing_bytes == pytest.approx(least - 1000)


def test_machines_that_share_what_they_need_get_the_rows_of_each_alone() -> None:
    """The least memory is found once for meshes that are alike; speeds are no part of it."""
    machines, smallest = ["h100", "l40s", "rtx4090"], 0.0

    def rows(names: list[str], limit: float) -> list[tuple[str, int, float | None, float]]:
        found = advise(
            example(),
            machines=names,
            device_counts=[4, 16],
            samples=64,
            memory_limit=limit,
            memory="sums",
            beside="none",
            max_micro_batches=4,
        )
        return [(r.machine, r.num_devices, r.time_s, r.memory_bytes) for r in found]

    for limit in (1000.0, 1.2):  # nothing fits; what needs little more than the least
        limit = limit if limit > 2 else limit * smallest
        together = rows(machines, limit)
        alone = [row for name in machines for row in rows([name], limit)]
        assert together == alone
        smallest = min(memory for *_, memory in together)
    assert any(time_s is not None for *_, time_s, _ in together)


def test_smaller_meshes_tell_what_larger_ones_need_at_least() -> None:
    """So no space is made for micro-batches that cannot fit; of 16 devices the outermost axis is
    between machines."""
    least = LeastMemory()
    for num_devices in (2, 4, 8, 16):
        options = PlanningOptions(
            cluster=cluster_for("h100", num_devices), recompute=True, measure=False
        )
        task = task_of(example(), options)
        spaces = Spaces(task, Parts(task, 4), num_devices, least)
        for count in spaces.counts:
            known = spaces.least_bound(count)
            needed = spaces.least_memory(count)
            assert known <= needed
            assert (known > 0.4 * needed) == (num_devices > 2)
            assert spaces.least_bound(count) == needed


@pytest.mark.parametrize("memory", ["sums", "simulated"])
def test_memory_without_an_end_is_no_limit(memory: Literal["sums", "simulated"]) -> None:
    options: dict[str, Any] = {
        "machines": ["h100"],
        "device_counts": [2],
        "steps": 1,
        "memory": memory,
        "beside": "all",
    }
    unlimited = advise(example(), memory_limit=math.inf, **options)
    plenty = advise(example(), memory_limit=1e12, **options)
    assert [(row.strategy, row.time_s) for row in unlimited] == [
        (row.strategy, row.time_s) for row in plenty
    ]


@pytest.mark.parametrize("share", [1.02, 1.5, 3.0, 1e6])
@pytest.mark.parametrize("sure", [True, False])
def test_the_fastest_within_the_limit_is_that_of_the_whole_frontiers(
    share: float, sure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More micro-batches are left out where fewer are as fast as without a limit and need no
    simulation."""
    options = PlanningOptions(cluster=cluster_for("h100", 4), recompute=True, measure=False)
    task = task_of(example(), options)
    spaces = Spaces(task, Parts(task, 4), 4, LeastMemory())
    counts = [1, 2]
    whole = [task.search.run(spaces.at(count).core) for count in counts]
    limit = share * min(result.min_memory for result in whole)
    searched: list[_C.SearchSpace] = []
    run = SearchSettings.run

    def watched(settings: SearchSettings, space: _C.SearchSpace, *args: Any, **kwargs: Any) -> Any:
        searched.append(space)
        return run(settings, space, *args, **kwargs)

    monkeypatch.setattr(SearchSettings, "run", watched)
    found = spaces.strategies(counts, limit, limit if sure else limit / 3)
    best_s = min(time_s for result in whole for memory, time_s in result.points if memory <= limit)
    memory_bytes, time_s = found.points[-1]
    assert memory_bytes <= limit and time_s <= 1.01 * best_s
    plan = found.plan(len(found.points) - 1)
    assert (plan.memory_bytes, plan.time_s) == (memory_bytes, time_s)
    assert searched == [spaces.at(count).core for count in counts[: 1 if share > 1000 else 2]]


def test_marked_rows_are_within_the_limit_by_their_peaks_and_have_others_below() -> None:
    smallest = find_frontier(example(), cluster="h100-4", recompute=True).smallest.memory_bytes
    limit = 4 * smallest
    found = advise(example(), machines=["h100"], device_counts=[4], steps=1, memory_limit=limit)
    ours, *others = found
    assert ours.strategy == OURS and ours.is_peak and ours.memory_bytes <= limit
    assert [row.strategy for row in others][:2] == ["DDP", "FSDP2"]
    for row in others:
        assert row.memory_bytes <= limit if row.fits else row.memory_bytes > 0
        assert bool(row.because) == row.fits
        assert row.time_s is None or row.time_s >= 0.98 * (ours.time_s or 0)


def test_data_parallelism_is_that_of_the_baselines() -> None:
    from tensoropt_torch import compare

    rows = advise(
        example(),
        machines=["h100-8"],
        device_counts=[8],
        steps=1,
        beside="all",
        memory="sums",
        max_micro_batches=1,
    )
    by_name = {row.strategy: row for row in rows}
    found = {row.name: row for row in compare(example(), cluster="h100-8", memory="sums").baselines}
    assert by_name["DDP"].time_s == pytest.approx(found["data parallel"].points[-1][1])
    assert by_name["FSDP2"].time_s == pytest.approx(found["ZeRO-3"].points[-1][1])


def test_machines_that_cannot_be_are_refused() -> None:
    with pytest.raises(TensorOptError, match="no whole number of machines of 'h100'"):
        advise(example(), machines=["h100"], device_counts=[12], steps=1)
    with pytest.raises(TensorOptError, match="'h10' is no kind of machine; did you mean"):
        advise(example(), machines=["h10"], device_counts=[8], steps=1)
    with pytest.raises(TensorOptError, match="cannot lay out 16 devices: it has 8"):
        advise(example(), machines=[load_cluster("h100-8")], device_counts=[16], steps=1)
    with pytest.raises(TensorOptError, match="a step has no tokens that are known"):
        advise(example(), machines=["h100"], device_counts=[8], tokens=1)
    with pytest.raises(TensorOptError, match="in one of tokens, samples and steps; got none"):
        advise(example(), machines=["h100"], device_counts=[8])
    with pytest.raises(TensorOptError, match="samples = inf is not allowed: nothing ends; give a"):
        advise(example(), machines=["h100"], device_counts=[8], samples=float("inf"))
    with pytest.raises(TensorOptError, match="beside='some' is not known"):
        advise(example(), machines=["h100"], device_counts=[8], steps=1, beside="some")  # type: ignore[arg-type]


def test_a_price_that_is_not_known_is_said_to_be() -> None:
    cluster = load_cluster("h100-8")
    device = replace(cluster.device, price_per_hour=None, price_source=None, price_currency=None)
    found = advise(
        example(),
        machines=[replace(cluster, device=device)],
        device_counts=[8],
        steps=1,
        beside="none",
    )
    assert found.rows[0].money is None and "not known" in found.to_markdown()
    assert list(found.marks.values()) == ["fastest"]


def test_the_command_writes_all_that_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    files = {name: tmp_path / name for name in ("a.md", "a.json", "a.html")}
    arguments = ["advise", "--config", CONFIG, "--batch", "8x32,4x64", "--tokens", "1e6"]
    arguments += ["--clusters", "h100,l40s", "--devices", "2..4", "--price", "2.5USD"]
    arguments += ["--markdown", str(files["a.md"]), "--json", str(files["a.json"])]
    arguments += ["--report", str(files["a.html"]), "--max-micro-batches", "2"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "MFU is the FLOPs of forward and backward" in printed
    assert [line.strip() for line in printed.splitlines() if " on " in line][:4] == [
        f"llama {batch} on {machine}" for batch in ("8x32", "4x64") for machine in ("h100", "l40s")
    ]
    assert all(name in printed for name in ("strategy", "tokens/s", "memory"))  # not cut
    rows = json.loads(files["a.json"].read_text())["rows"]
    ours = [row for row in rows if row["strategy"] == OURS]
    assert len(ours) == 2 * 2 * 2 and {row["model"] for row in ours} == {"llama 8x32", "llama 4x64"}
    assert all(row["currency"] == "USD" for row in rows)
    assert files["a.md"].read_text().count("\n") == 2 + len(rows)
    page = files["a.html"].read_text()
    assert "How long does it take, and what does it cost?" in page and "llama 8x32" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", CONFIG, "--tokens", "1"], "needs --batch: rows x tokens"),
        (["m.py:f", "--config", CONFIG, "--tokens", "1"], "one of them: both are given"),
        (["--tokens", "1"], "one of them: neither is given"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["advise", *arguments, "--clusters", "h100", "--devices", "8"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--devices", "8..4", "'8..4' is no range of devices; give one such as 8..256"),
        ("--price", "free", "'free' is no price; give that of a device for an hour"),
        ("--batch", "8*8", "batch '8*8' is not known; give rows x tokens"),
    ],
)
def test_texts_that_are_no_numbers_are_told(
    option: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["advise", "m.py:f", "--clusters", "h100", "--devices", "8", option, text])
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_function_is_called_with_the_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\n"
        "def words(rows, tokens):\n"
        "    model = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Flatten(0))\n"
        "    return model, (torch.zeros(rows, tokens, dtype=torch.long),)\n"
    )
    arguments = ["advise", f"{tmp_path}/m.py:words", "--batch", "4x8", "--tokens", "320"]
    arguments += ["--clusters", "h100", "--devices", "2", "--beside", "none"]
    arguments += ["--json", str(tmp_path / "a.json"), "--memory", "sums"]
    assert cli.main(arguments) == 0, capsys.readouterr()
    assert "10 steps in all" in " ".join(capsys.readouterr().out.split())
