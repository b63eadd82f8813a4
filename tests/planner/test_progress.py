"""While a model is planned, what is looked on is told: captured, written in micro-batches, searched
in each of them and in stages, and simulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Example
from tensoropt_torch import progress as progress_module

Shown = tuple[int, int, str]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Shown]]:
    """What a bar shows, by its title."""
    found: dict[str, list[Shown]] = {}

    @contextmanager
    def bar(title: str, total: int, ticking: bool) -> Iterator[progress_module.Tell]:
        assert ticking, f"the time of '{title}' would stand still"
        shown = found.setdefault(title, [])
        yield lambda *now: shown.append(now)

    monkeypatch.setattr(progress_module, "_is_watched", lambda: True)
    monkeypatch.setattr(progress_module, "_bar", bar)
    return found


def example() -> Example:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), nn.Flatten(0))
        return Example(model, (torch.empty(32, 64),), loss_fn=lambda out: out.pow(2).mean())


def test_a_frontier_says_what_it_is_at(told: dict[str, list[Shown]]) -> None:
    asked = {"recompute": True, "max_micro_batches": 4, "max_stages": 2}
    tensoropt_torch.find_frontier(example(), cluster="h100-8", num_devices=4, **asked)
    assert list(told) == [
        "capturing the model",
        "writing the step in micro-batches",
        "searching the strategies of 4 devices, with recomputation",
        "searching stages",
    ]
    _, written, searched, stages = told.values()
    assert written[0] == (0, 2, "2 micro-batches") and written[-1] == (2, 2, "4 micro-batches")
    assert [now for done, _, now in searched if done < 3][::2] == [
        *("the whole batch", "2 micro-batches", "4 micro-batches")
    ]
    assert searched[-1][:2] == (3, 3)
    assert stages[0] == (0, 2, "2 stages, 4 micro-batches") and stages[-1][:2] == (2, 2)


def test_a_comparison_says_what_it_is_at(told: dict[str, list[Shown]]) -> None:
    tensoropt_torch.compare(example(), cluster="h100-8", num_devices=4)
    names = [now for _, _, now in told["searching baselines"][::2]]
    assert names[:2] == ["DDP (data parallel)", "FSDP2 (ZeRO-3)"] and len(set(names)) == 6
    peaks = told["simulating peaks of baselines"]
    assert {now for _, _, now in peaks} >= set(names)
    assert "simulating peaks of the frontier" in told


def test_advice_says_what_it_is_at(told: dict[str, list[Shown]]) -> None:
    asked = {"machines": ["h100", "l40s"], "device_counts": [2, 4], "steps": 1}
    tensoropt_torch.advise({"ours": example()}, **asked)
    (shown,) = told.values()
    assert list(dict.fromkeys(now for _, _, now in shown)) == [
        *("capturing ours", "ours on h100", "ours on l40s", "ours: peaks, and what others take")
    ]
    assert shown[-1][:2] == (4, 4)
